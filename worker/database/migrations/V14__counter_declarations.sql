-- Which readings say how the consumption of a series follows: `counter` is `newest_counter`, that of the newest reading, or
-- else `declared_counter`, that of the newest reading whose sender says something of the counter. It was taken at
-- `declared_at`. Both are as the calibration of their reading makes them, so that the order of arrival does not matter.
ALTER TABLE {p}_series ADD COLUMN declared_at timestamptz;
ALTER TABLE {p}_series ADD COLUMN declared_counter jsonb;
ALTER TABLE {p}_series ADD COLUMN newest_counter jsonb;
-- Before, it was not kept which reading said so.
UPDATE {p}_series SET declared_at = last_time, declared_counter = counter WHERE sent_counter IS NOT NULL;

-- When the counter of a reading was at zero, as before the correction.
ALTER TABLE {p}_corrections ADD COLUMN start_time timestamptz;
UPDATE {p}_corrections AS c SET start_time = r.start_time FROM {p}_readings AS r
WHERE r.device = c.device AND r.metric = c.metric AND r.time = c.time AND r.start_time IS NOT NULL;

-- Whether the consumption of a counter includes a reading. A zero without a start time says nothing, whether or not its
-- own sender says that it is of a counter: most often the device has not read its meter yet.
CREATE FUNCTION {p}_is_counted(quality text[], value double precision, start timestamptz)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $body$
    SELECT {p}_is_usable(quality) AND (value <> 0 OR start IS NOT NULL)
$body$;

-- The consumption of each counted reading of a period since the one before it, which may be before the period. A reading in
-- another unit than that one begins anew. The first reading of all counts only from a zero before it.
CREATE OR REPLACE FUNCTION {p}_counter_steps(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE ("time" timestamptz, unit text, step double precision) LANGUAGE plpgsql STABLE AS $body$
DECLARE
    counter jsonb := (SELECT s.counter FROM {p}_series AS s WHERE s.device = of_device AND s.metric = of_metric);
BEGIN
    IF counter IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH points AS (
        (SELECT r.time, coalesce(r.unit, '') AS unit, r.value, r.start_time FROM {p}_readings AS r
         WHERE r.device = of_device AND r.metric = of_metric AND r.time < low
         AND {p}_is_counted(r.quality, r.value, r.start_time)
         ORDER BY r.time DESC LIMIT 1)
        UNION ALL
        SELECT r.time, coalesce(r.unit, ''), r.value, r.start_time FROM {p}_readings AS r
        WHERE r.device = of_device AND r.metric = of_metric AND r.time >= low AND r.time < high
        AND {p}_is_counted(r.quality, r.value, r.start_time)
    ), pairs AS (
        SELECT p.*, lag(p.time) OVER w AS base_time, lag(p.unit) OVER w AS base_unit, lag(p.value) OVER w AS base,
               lag(p.start_time) OVER w AS base_start
        FROM points AS p WINDOW w AS (ORDER BY p.time)
    )
    SELECT p.time, p.unit, CASE
        WHEN p.base_time IS NULL THEN coalesce((
                 SELECT {p}_counter_step(counter, zero.time, 0, NULL, p.time, p.value, NULL) FROM (
                     SELECT r.time FROM {p}_readings AS r
                     WHERE r.device = of_device AND r.metric = of_metric AND r.time < p.time
                     AND ('counter-zero' = ANY(r.quality)
                          OR r.value = 0 AND r.start_time IS NULL AND {p}_is_usable(r.quality))
                     ORDER BY r.time DESC LIMIT 1) AS zero), 0)
        WHEN p.base_unit = p.unit THEN {p}_counter_step(counter, p.base_time, p.base, p.base_start,
                                                        p.time, p.value, p.start_time)
        ELSE 0 END
    FROM pairs AS p WHERE p.time >= low;
END $body$;

-- The hours whose consumption depends on the readings of other hours: each that has the next counted reading.
CREATE OR REPLACE FUNCTION {p}_hours_after(of_device text, of_metric text, hours tstzmultirange) RETURNS tstzmultirange
LANGUAGE sql STABLE AS $body$
    SELECT coalesce(range_agg(tstzrange(date_bin('1 hour', next.time, '2000-01-01Z'),
                                        date_bin('1 hour', next.time, '2000-01-01Z') + interval '1 hour')), '{}')
    FROM unnest(hours) AS part CROSS JOIN LATERAL (
        SELECT r.time FROM {p}_readings AS r
        WHERE r.device = of_device AND r.metric = of_metric AND r.time >= upper(part)
        AND {p}_is_counted(r.quality, r.value, r.start_time)
        ORDER BY r.time LIMIT 1) AS next
$body$;

-- Where a calibration says that it is a counter, zeros were left out before.
UPDATE {p}_series AS s SET stale = {p}_stale_with(s.stale, {p}_all_hours(s.device, s.metric))
WHERE s.sent_counter IS NOT NULL AND s.counter IS NOT NULL;
