-- One row for each device and metric: its newest reading by the sensor's clock, and when one was stored last.
CREATE TABLE {p}_series (
    device text, metric text, last_time timestamptz NOT NULL, last_value double precision NOT NULL, last_unit text,
    last_quality text[] NOT NULL, stored_at timestamptz NOT NULL, PRIMARY KEY (device, metric)
) WITH (fillfactor = 70);

-- From the readings that are stored, one index lookup for each series.
INSERT INTO {p}_series
WITH RECURSIVE series AS (
    (SELECT device, metric FROM {p}_readings ORDER BY device, metric LIMIT 1)
    UNION ALL
    SELECT next.* FROM series CROSS JOIN LATERAL (
        SELECT r.device, r.metric FROM {p}_readings AS r WHERE (r.device, r.metric) > (series.device, series.metric)
        ORDER BY r.device, r.metric LIMIT 1
    ) AS next
)
SELECT series.device, series.metric, newest.*
FROM series CROSS JOIN LATERAL (
    SELECT r.time, r.value, r.unit, r.quality, r.stored_at FROM {p}_readings AS r
    WHERE r.device = series.device AND r.metric = series.metric ORDER BY r.time DESC LIMIT 1
) AS newest;
