-- Rollups: readings by device, metric, unit ('' if there is none) and hour or day in UTC. Flagged readings that rules do
-- not judge are only counted.
CREATE TABLE {p}_rollups_hour (
    device text, metric text, time timestamptz, unit text, count bigint NOT NULL, mean double precision,
    min double precision, max double precision, flagged bigint NOT NULL,
    -- `prunes` of the series when the row was computed. A row of pruned readings is final.
    after_prunes int NOT NULL, PRIMARY KEY (device, metric, time, unit));
CREATE TABLE {p}_rollups_day (
    device text, metric text, time timestamptz, unit text, count bigint NOT NULL, mean double precision,
    min double precision, max double precision, flagged bigint NOT NULL,
    -- The same of `hour_prunes`.
    after_prunes int NOT NULL, PRIMARY KEY (device, metric, time, unit));

-- `stale` has the hours whose readings have changed since their rollups were computed; it is written in the transaction
-- that changes the readings. Readings and hourly rollups before a time were pruned, so many times.
ALTER TABLE {p}_series
    ADD COLUMN stale tstzmultirange NOT NULL DEFAULT '{}',
    ADD COLUMN pruned_before timestamptz NOT NULL DEFAULT '-infinity', ADD COLUMN prunes int NOT NULL DEFAULT 0,
    ADD COLUMN hours_pruned_before timestamptz NOT NULL DEFAULT '-infinity', ADD COLUMN hour_prunes int NOT NULL DEFAULT 0;

-- Everything that is stored is to be computed: one index lookup for each series.
UPDATE {p}_series AS series SET stale = tstzmultirange(tstzrange(
    date_bin('1 hour', oldest.time, '2000-01-01Z'),
    date_bin('1 hour', greatest(series.last_time, oldest.time), '2000-01-01Z') + interval '1 hour'))
FROM {p}_series AS s CROSS JOIN LATERAL (
    SELECT r.time FROM {p}_readings AS r WHERE r.device = s.device AND r.metric = s.metric ORDER BY r.time LIMIT 1) AS oldest
WHERE s.device = series.device AND s.metric = series.metric AND isfinite(oldest.time) AND isfinite(series.last_time);

-- Hours with further ones. More than 128 ranges become days, and then one range.
CREATE FUNCTION {p}_stale_with(stale tstzmultirange, more tstzmultirange) RETURNS tstzmultirange
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $body$
DECLARE
    hours tstzmultirange := stale + more;
BEGIN
    IF (SELECT count(*) FROM unnest(hours)) <= 128 THEN
        RETURN hours;
    END IF;
    hours := (SELECT range_agg(tstzrange(date_bin('1 day', lower(part), '2000-01-01Z'),
                  date_bin('1 day', upper(part) - interval '1 hour', '2000-01-01Z') + interval '24 hours'))
              FROM unnest(hours) AS part);
    IF (SELECT count(*) FROM unnest(hours)) <= 128 THEN
        RETURN hours;
    END IF;
    RETURN tstzmultirange(range_merge(hours));
END $body$;

-- Whether a rollup stays as it is, because what it was computed from was pruned.
CREATE FUNCTION {p}_is_final_day(series {p}_series, day timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $body$
    SELECT day < series.hours_pruned_before AND EXISTS (
               SELECT FROM {p}_rollups_day AS d WHERE d.device = series.device AND d.metric = series.metric
               AND d.time = day AND d.after_prunes < series.hour_prunes)
$body$;

CREATE FUNCTION {p}_is_final_hour(series {p}_series, hour timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $body$
    SELECT hour < series.pruned_before AND EXISTS (
               SELECT FROM {p}_rollups_hour AS h WHERE h.device = series.device AND h.metric = series.metric
               AND h.time = hour AND h.after_prunes < series.prunes)
           OR {p}_is_final_day(series, date_bin('1 day', hour, '2000-01-01Z'))
$body$;

-- The rollups that the readings of these hours give. The flags are those that exclude a reading from judgement.
CREATE FUNCTION {p}_hours_of_readings(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE (hour timestamptz, unit text, count bigint, mean double precision, min double precision,
               max double precision, flagged bigint) LANGUAGE sql STABLE AS $body$
    SELECT date_bin('1 hour', r.time, '2000-01-01Z'), coalesce(r.unit, ''), count(*) FILTER (WHERE f.usable),
           avg(r.value) FILTER (WHERE f.usable), min(r.value) FILTER (WHERE f.usable), max(r.value) FILTER (WHERE f.usable),
           count(*) FILTER (WHERE NOT f.usable)
    FROM {p}_readings AS r
    CROSS JOIN LATERAL (SELECT NOT r.quality && '{out-of-range,impossible,not-calibrated}'::text[] AS usable) AS f
    WHERE r.device = of_device AND r.metric = of_metric AND r.time >= low AND r.time < high
    GROUP BY 1, 2
$body$;

-- The hours of a period, from the rollups, and from the readings where those are stale. `low` and `high` are rounded to
-- whole hours. Compiling the plan would take longer than running it.
CREATE FUNCTION {p}_hourly(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE ("time" timestamptz, unit text, count bigint, mean double precision, min double precision,
               max double precision, flagged bigint) LANGUAGE sql STABLE SET jit = off AS $body$
    SELECT h.time, h.unit, h.count, h.mean, h.min, h.max, h.flagged
    FROM {p}_series AS s JOIN {p}_rollups_hour AS h USING (device, metric)
    WHERE s.device = of_device AND s.metric = of_metric
    AND h.time >= date_bin('1 hour', low, '2000-01-01Z') AND h.time < high
    AND (NOT h.time <@ s.stale OR {p}_is_final_hour(s, h.time))
    UNION ALL
    SELECT f.* FROM {p}_series AS s CROSS JOIN LATERAL unnest(s.stale * tstzmultirange(tstzrange(
        date_bin('1 hour', low, '2000-01-01Z'),
        date_bin('1 hour', high - interval '1 microsecond', '2000-01-01Z') + interval '1 hour'))) AS part
    CROSS JOIN LATERAL {p}_hours_of_readings(of_device, of_metric, lower(part), upper(part)) AS f
    WHERE s.device = of_device AND s.metric = of_metric AND NOT {p}_is_final_hour(s, f.hour)
$body$;

-- The days of a period, in the same way. `low` and `high` are rounded to whole days in UTC.
CREATE FUNCTION {p}_daily(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE ("time" timestamptz, unit text, count bigint, mean double precision, min double precision,
               max double precision, flagged bigint) LANGUAGE sql STABLE SET jit = off AS $body$
    WITH stale AS (
        SELECT range_agg(tstzrange(date_bin('1 day', lower(part), '2000-01-01Z'),
                   date_bin('1 day', upper(part) - interval '1 hour', '2000-01-01Z') + interval '24 hours')) AS days
        FROM {p}_series AS s CROSS JOIN LATERAL unnest(s.stale * tstzmultirange(tstzrange(
            date_bin('1 day', low, '2000-01-01Z'),
            date_bin('1 day', high - interval '1 microsecond', '2000-01-01Z') + interval '24 hours'))) AS part
        WHERE s.device = of_device AND s.metric = of_metric)
    SELECT d.time, d.unit, d.count, d.mean, d.min, d.max, d.flagged
    FROM stale CROSS JOIN {p}_series AS s JOIN {p}_rollups_day AS d USING (device, metric)
    WHERE s.device = of_device AND s.metric = of_metric
    AND d.time >= date_bin('1 day', low, '2000-01-01Z') AND d.time < high
    AND (stale.days IS NULL OR NOT d.time <@ stale.days OR {p}_is_final_day(s, d.time))
    UNION ALL
    SELECT date_bin('1 day', h.time, '2000-01-01Z'), h.unit, sum(h.count)::bigint,
           sum(h.mean * h.count) / nullif(sum(h.count), 0), min(h.min), max(h.max), sum(h.flagged)::bigint
    FROM stale CROSS JOIN LATERAL unnest(stale.days) AS part
    CROSS JOIN LATERAL {p}_hourly(of_device, of_metric, lower(part), upper(part)) AS h
    JOIN {p}_series AS s ON s.device = of_device AND s.metric = of_metric
    WHERE NOT {p}_is_final_day(s, date_bin('1 day', h.time, '2000-01-01Z'))
    GROUP BY 1, 2
$body$;

-- Computes stale rollups of the next series after `after`: those of hours that ended five minutes ago, the oldest first,
-- of at most `readings` readings or one hour. `step` is `busy` while another session does the same, `end` after the last
-- series, and else `more` or `done`, with the series. One call is one transaction. It locks the series' row, which
-- whoever changes readings of the series writes last: they wait for the call, or it sees their readings.
CREATE FUNCTION {p}_roll_up(after_device text, after_metric text, readings int,
                            OUT step text, OUT next_device text, OUT next_metric text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $body$
DECLARE
    due CONSTANT tstzrange := tstzrange(NULL, date_bin('1 hour', now() - interval '5 minutes', '2000-01-01Z'));
    series {p}_series;
    part tstzrange;
    low timestamptz;
    high timestamptz;
    first_day timestamptz;
    last_day timestamptz;
    further timestamptz;
    pruned_before timestamptz;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{p}_roll_up', 0)) THEN
        step := 'busy';
        RETURN;
    END IF;
    SELECT * INTO series FROM {p}_series AS s
    WHERE (s.device, s.metric) > (after_device, after_metric) AND s.stale && due
    ORDER BY s.device, s.metric LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        step := 'end';
        RETURN;
    END IF;
    next_device := series.device;
    next_metric := series.metric;

    SELECT due_part INTO part FROM unnest(series.stale * tstzmultirange(due)) AS due_part LIMIT 1;
    low := lower(part);
    high := upper(part);
    SELECT r.time INTO further FROM {p}_readings AS r
    WHERE r.device = series.device AND r.metric = series.metric AND r.time >= low AND r.time < high
    ORDER BY r.time OFFSET readings LIMIT 1;
    IF FOUND THEN
        high := greatest(date_bin('1 hour', further, '2000-01-01Z'), low + interval '1 hour');
    END IF;

    pruned_before := greatest(series.pruned_before, series.hours_pruned_before);
    WITH fresh AS MATERIALIZED (
        SELECT f.* FROM {p}_hours_of_readings(series.device, series.metric, low, high) AS f
        WHERE f.hour >= pruned_before OR NOT {p}_is_final_hour(series, f.hour)
    ), gone AS (
        DELETE FROM {p}_rollups_hour AS h
        WHERE h.device = series.device AND h.metric = series.metric AND h.time >= low AND h.time < high
        AND NOT EXISTS (SELECT FROM fresh WHERE fresh.hour = h.time AND fresh.unit = h.unit)
        AND (h.time >= pruned_before OR NOT {p}_is_final_hour(series, h.time))
    )
    INSERT INTO {p}_rollups_hour (device, metric, time, unit, count, mean, min, max, flagged, after_prunes)
    SELECT series.device, series.metric, fresh.*, series.prunes FROM fresh
    ON CONFLICT (device, metric, time, unit) DO UPDATE SET count = excluded.count, mean = excluded.mean,
        min = excluded.min, max = excluded.max, flagged = excluded.flagged, after_prunes = excluded.after_prunes;

    first_day := date_bin('1 day', low, '2000-01-01Z');
    last_day := date_bin('1 day', high - interval '1 hour', '2000-01-01Z');
    WITH fresh AS MATERIALIZED (
        SELECT date_bin('1 day', h.time, '2000-01-01Z') AS day, h.unit, sum(h.count)::bigint,
               sum(h.mean * h.count) / nullif(sum(h.count), 0), min(h.min), max(h.max), sum(h.flagged)::bigint
        FROM {p}_rollups_hour AS h WHERE h.device = series.device AND h.metric = series.metric
        AND h.time >= first_day AND h.time < last_day + interval '24 hours'
        AND (h.time >= series.hours_pruned_before OR NOT {p}_is_final_day(series, date_bin('1 day', h.time, '2000-01-01Z')))
        GROUP BY 1, 2
    ), gone AS (
        DELETE FROM {p}_rollups_day AS d
        WHERE d.device = series.device AND d.metric = series.metric AND d.time >= first_day AND d.time <= last_day
        AND NOT EXISTS (SELECT FROM fresh WHERE fresh.day = d.time AND fresh.unit = d.unit)
        AND (d.time >= series.hours_pruned_before OR NOT {p}_is_final_day(series, d.time))
    )
    INSERT INTO {p}_rollups_day (device, metric, time, unit, count, mean, min, max, flagged, after_prunes)
    SELECT series.device, series.metric, fresh.*, series.hour_prunes FROM fresh
    ON CONFLICT (device, metric, time, unit) DO UPDATE SET count = excluded.count, mean = excluded.mean,
        min = excluded.min, max = excluded.max, flagged = excluded.flagged, after_prunes = excluded.after_prunes;

    UPDATE {p}_series AS s SET stale = s.stale - tstzmultirange(tstzrange(low, high))
    WHERE s.device = series.device AND s.metric = series.metric
    RETURNING CASE WHEN s.stale && due THEN 'more' ELSE 'done' END INTO step;
END $body$;
