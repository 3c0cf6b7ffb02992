-- A series whose rollups cannot be computed stops no other one. Its row says why, how often in a row, and when last.
ALTER TABLE {p}_series
    ADD COLUMN rollup_error text, ADD COLUMN rollup_failures int NOT NULL DEFAULT 0, ADD COLUMN rollup_failed_at timestamptz;
CREATE INDEX {p}_series_failing ON {p}_series (device, metric) WHERE rollup_error IS NOT NULL;

-- The mean of finite values whose sum a double precision may not hold. avg() and a division would fail the statement with
-- an overflow or underflow. `small` is the sum of the values up to 1e290, `large` that of the others times 2^-600.
CREATE FUNCTION {p}_mean(small double precision, large double precision, number double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $body$
    SELECT CASE WHEN abs(small) < number * 1e-307 THEN 0 ELSE coalesce(small, 0) / nullif(number, 0) END
         + CASE WHEN large IS NULL THEN 0
                WHEN large = 'NaN' THEN large
                -- Within the largest finite value, which rounding could exceed.
                ELSE greatest(least(large / number, 4.3322963970637727e127), -4.3322963970637727e127) * 4.149515568880993e180
           END
$body$;

-- Cumulative counters: how the consumption of a series follows from its readings, as JSON with `wraps_at` and `max_per_hour`.
-- Null if the series is no counter.
ALTER TABLE {p}_series ADD COLUMN counter jsonb;

-- What was consumed in an hour or a day; null if the series is no counter.
ALTER TABLE {p}_rollups_hour ADD COLUMN consumption double precision;
ALTER TABLE {p}_rollups_day ADD COLUMN consumption double precision;

-- Whether rules judge a reading with these flags, and means and consumption include it.
CREATE FUNCTION {p}_is_usable(quality text[]) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $body$
    SELECT NOT quality && '{out-of-range,impossible,not-calibrated,counter-zero}'::text[]
$body$;

-- The consumption from a reading to the next usable one, 0 or more. A lower value is a wrap or a restart at zero. It is a
-- wrap if `wraps_at` is set and the step across it is within `max_per_hour`, or, without that bound, at most half of
-- `wraps_at`. A step beyond `max_per_hour` is an exchanged meter, and not counted; neither are values beyond 1e300.
-- The same rule judges alarms (`Counter::step`).
CREATE FUNCTION {p}_counter_step(counter jsonb, base_time timestamptz, base double precision,
                                 of_time timestamptz, value double precision)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $body$
DECLARE
    wraps_at CONSTANT double precision := (counter->>'wraps_at')::double precision;
    hours CONSTANT double precision := extract(epoch FROM of_time - base_time)::double precision / 3600;
    most CONSTANT double precision := (counter->>'max_per_hour')::double precision * hours;
    across double precision;
    step double precision;
BEGIN
    IF abs(value) > 1e300 OR abs(base) > 1e300 THEN
        RETURN 0;
    END IF;
    across := value + wraps_at - base;
    step := CASE WHEN value >= base THEN value - base
                 WHEN across >= 0 AND across <= coalesce(most, wraps_at / 2) THEN across
                 ELSE value END;
    RETURN CASE WHEN step < 0 OR step > most THEN 0 ELSE step END;
END $body$;

-- The consumption of each usable reading of a period since the usable reading before it, which may be before the period.
-- A reading in another unit than that one begins anew. The first reading of all counts only from a zero before it.
CREATE FUNCTION {p}_counter_steps(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE ("time" timestamptz, unit text, step double precision) LANGUAGE plpgsql STABLE AS $body$
DECLARE
    counter jsonb := (SELECT s.counter FROM {p}_series AS s WHERE s.device = of_device AND s.metric = of_metric);
BEGIN
    IF counter IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH points AS (
        (SELECT r.time, coalesce(r.unit, '') AS unit, r.value FROM {p}_readings AS r
         WHERE r.device = of_device AND r.metric = of_metric AND r.time < low AND {p}_is_usable(r.quality)
         ORDER BY r.time DESC LIMIT 1)
        UNION ALL
        SELECT r.time, coalesce(r.unit, ''), r.value FROM {p}_readings AS r
        WHERE r.device = of_device AND r.metric = of_metric AND r.time >= low AND r.time < high
        AND {p}_is_usable(r.quality)
    ), pairs AS (
        SELECT p.*, lag(p.time) OVER w AS base_time, lag(p.unit) OVER w AS base_unit, lag(p.value) OVER w AS base
        FROM points AS p WINDOW w AS (ORDER BY p.time)
    )
    SELECT p.time, p.unit, CASE
        WHEN p.base_time IS NULL THEN coalesce((
                 SELECT {p}_counter_step(counter, zero.time, 0, p.time, p.value) FROM (
                     SELECT r.time FROM {p}_readings AS r
                     WHERE r.device = of_device AND r.metric = of_metric AND r.time < p.time
                     AND 'counter-zero' = ANY(r.quality) ORDER BY r.time DESC LIMIT 1) AS zero), 0)
        WHEN p.base_unit = p.unit THEN {p}_counter_step(counter, p.base_time, p.base, p.time, p.value)
        ELSE 0 END
    FROM pairs AS p WHERE p.time >= low;
END $body$;

-- The hours whose consumption depends on the readings of other hours: each that has the next usable reading.
CREATE FUNCTION {p}_hours_after(of_device text, of_metric text, hours tstzmultirange) RETURNS tstzmultirange
LANGUAGE sql STABLE AS $body$
    SELECT coalesce(range_agg(tstzrange(date_bin('1 hour', next.time, '2000-01-01Z'),
                                        date_bin('1 hour', next.time, '2000-01-01Z') + interval '1 hour')), '{}')
    FROM unnest(hours) AS part CROSS JOIN LATERAL (
        SELECT r.time FROM {p}_readings AS r
        WHERE r.device = of_device AND r.metric = of_metric AND r.time >= upper(part) AND {p}_is_usable(r.quality)
        ORDER BY r.time LIMIT 1) AS next
$body$;

-- The hours from the first reading of a series to its newest one.
CREATE FUNCTION {p}_all_hours(of_device text, of_metric text) RETURNS tstzmultirange LANGUAGE sql STABLE AS $body$
    SELECT coalesce(range_agg(tstzrange(date_bin('1 hour', oldest.time, '2000-01-01Z'),
                                        date_bin('1 hour', newest.time, '2000-01-01Z') + interval '1 hour')), '{}')
    FROM (SELECT r.time FROM {p}_readings AS r WHERE r.device = of_device AND r.metric = of_metric
          AND isfinite(r.time) ORDER BY r.time LIMIT 1) AS oldest
    CROSS JOIN (SELECT r.time FROM {p}_readings AS r WHERE r.device = of_device AND r.metric = of_metric
                AND isfinite(r.time) ORDER BY r.time DESC LIMIT 1) AS newest
$body$;

DROP FUNCTION {p}_roll_up(text, text, int);
DROP FUNCTION {p}_daily(text, text, timestamptz, timestamptz);
DROP FUNCTION {p}_hourly(text, text, timestamptz, timestamptz);
DROP FUNCTION {p}_hours_of_readings(text, text, timestamptz, timestamptz);

-- The rollups that the readings of these hours give.
CREATE FUNCTION {p}_hours_of_readings(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE (hour timestamptz, unit text, count bigint, mean double precision, min double precision,
               max double precision, flagged bigint, consumption double precision) LANGUAGE sql STABLE AS $body$
    SELECT h.*, CASE WHEN s.counter IS NOT NULL THEN coalesce(c.consumption, 0) END
    FROM (SELECT date_bin('1 hour', r.time, '2000-01-01Z') AS hour, coalesce(r.unit, '') AS unit,
                 count(*) FILTER (WHERE f.usable),
                 {p}_mean(sum(r.value) FILTER (WHERE f.usable AND abs(r.value) <= 1e290),
                          sum(r.value * 2.409919865102884e-181::float8) FILTER (WHERE f.usable AND abs(r.value) > 1e290),
                          count(*) FILTER (WHERE f.usable)),
                 min(r.value) FILTER (WHERE f.usable), max(r.value) FILTER (WHERE f.usable),
                 count(*) FILTER (WHERE NOT f.usable)
          FROM {p}_readings AS r CROSS JOIN LATERAL (SELECT {p}_is_usable(r.quality) AS usable) AS f
          WHERE r.device = of_device AND r.metric = of_metric AND r.time >= low AND r.time < high
          GROUP BY 1, 2) AS h
    LEFT JOIN (SELECT date_bin('1 hour', step.time, '2000-01-01Z') AS hour, step.unit, sum(step.step) AS consumption
               FROM {p}_counter_steps(of_device, of_metric, low, high) AS step GROUP BY 1, 2) AS c USING (hour, unit)
    LEFT JOIN {p}_series AS s ON s.device = of_device AND s.metric = of_metric
$body$;

-- The hours of a period, as before.
CREATE FUNCTION {p}_hourly(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE ("time" timestamptz, unit text, count bigint, mean double precision, min double precision,
               max double precision, flagged bigint, consumption double precision)
LANGUAGE sql STABLE SET jit = off AS $body$
    SELECT h.time, h.unit, h.count, h.mean, h.min, h.max, h.flagged, h.consumption
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

-- The days of a period, as before.
CREATE FUNCTION {p}_daily(of_device text, of_metric text, low timestamptz, high timestamptz)
RETURNS TABLE ("time" timestamptz, unit text, count bigint, mean double precision, min double precision,
               max double precision, flagged bigint, consumption double precision)
LANGUAGE sql STABLE SET jit = off AS $body$
    WITH stale AS (
        SELECT range_agg(tstzrange(date_bin('1 day', lower(part), '2000-01-01Z'),
                   date_bin('1 day', upper(part) - interval '1 hour', '2000-01-01Z') + interval '24 hours')) AS days
        FROM {p}_series AS s CROSS JOIN LATERAL unnest(s.stale * tstzmultirange(tstzrange(
            date_bin('1 day', low, '2000-01-01Z'),
            date_bin('1 day', high - interval '1 microsecond', '2000-01-01Z') + interval '24 hours'))) AS part
        WHERE s.device = of_device AND s.metric = of_metric)
    SELECT d.time, d.unit, d.count, d.mean, d.min, d.max, d.flagged, d.consumption
    FROM stale CROSS JOIN {p}_series AS s JOIN {p}_rollups_day AS d USING (device, metric)
    WHERE s.device = of_device AND s.metric = of_metric
    AND d.time >= date_bin('1 day', low, '2000-01-01Z') AND d.time < high
    AND (stale.days IS NULL OR NOT d.time <@ stale.days OR {p}_is_final_day(s, d.time))
    UNION ALL
    SELECT date_bin('1 day', h.time, '2000-01-01Z'), h.unit, sum(h.count)::bigint,
           {p}_mean(sum(h.mean * h.count) FILTER (WHERE abs(h.mean) <= 1e290),
                    sum(h.mean * 2.409919865102884e-181::float8 * h.count) FILTER (WHERE abs(h.mean) > 1e290),
                    sum(h.count)::float8), min(h.min), max(h.max), sum(h.flagged)::bigint, sum(h.consumption)
    FROM stale CROSS JOIN LATERAL unnest(stale.days) AS part
    CROSS JOIN LATERAL {p}_hourly(of_device, of_metric, lower(part), upper(part)) AS h
    JOIN {p}_series AS s ON s.device = of_device AND s.metric = of_metric
    WHERE NOT {p}_is_final_day(s, date_bin('1 day', h.time, '2000-01-01Z'))
    GROUP BY 1, 2
$body$;

-- Computes stale rollups of the next series after `after`: those of hours that ended five minutes ago, the oldest first,
-- of at most `readings` readings or one hour. `step` is `busy` while another session does the same, `end` after the last
-- series, and else `more`, `done` or, with the error, `failed`, with the series. A series that failed is left out for
-- growing times of up to an hour. One call is one transaction. It locks the series' row, which whoever changes readings of
-- the series writes last: they wait for the call, or it sees their readings.
CREATE FUNCTION {p}_roll_up(after_device text, after_metric text, readings int,
                            OUT step text, OUT next_device text, OUT next_metric text, OUT error text)
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
    AND (s.rollup_error IS NULL
         OR s.rollup_failed_at < clock_timestamp() - least(interval '5 seconds' * 2 ^ least(s.rollup_failures, 10), interval '1 hour'))
    ORDER BY s.device, s.metric LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        step := 'end';
        RETURN;
    END IF;
    next_device := series.device;
    next_metric := series.metric;

    BEGIN
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
        INSERT INTO {p}_rollups_hour (device, metric, time, unit, count, mean, min, max, flagged, consumption, after_prunes)
        SELECT series.device, series.metric, fresh.*, series.prunes FROM fresh
        ON CONFLICT (device, metric, time, unit) DO UPDATE SET count = excluded.count, mean = excluded.mean,
            min = excluded.min, max = excluded.max, flagged = excluded.flagged,
            consumption = excluded.consumption, after_prunes = excluded.after_prunes;

        first_day := date_bin('1 day', low, '2000-01-01Z');
        last_day := date_bin('1 day', high - interval '1 hour', '2000-01-01Z');
        WITH fresh AS MATERIALIZED (
            SELECT date_bin('1 day', h.time, '2000-01-01Z') AS day, h.unit, sum(h.count)::bigint,
                   {p}_mean(sum(h.mean * h.count) FILTER (WHERE abs(h.mean) <= 1e290),
                            sum(h.mean * 2.409919865102884e-181::float8 * h.count) FILTER (WHERE abs(h.mean) > 1e290),
                            sum(h.count)::float8), min(h.min), max(h.max), sum(h.flagged)::bigint,
                   sum(h.consumption)
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
        INSERT INTO {p}_rollups_day (device, metric, time, unit, count, mean, min, max, flagged, consumption, after_prunes)
        SELECT series.device, series.metric, fresh.*, series.hour_prunes FROM fresh
        ON CONFLICT (device, metric, time, unit) DO UPDATE SET count = excluded.count, mean = excluded.mean,
            min = excluded.min, max = excluded.max, flagged = excluded.flagged,
            consumption = excluded.consumption, after_prunes = excluded.after_prunes;

        UPDATE {p}_series AS s SET stale = s.stale - tstzmultirange(tstzrange(low, high)),
            rollup_error = NULL, rollup_failures = 0, rollup_failed_at = NULL
        WHERE s.device = series.device AND s.metric = series.metric
        RETURNING CASE WHEN s.stale && due THEN 'more' ELSE 'done' END INTO step;
    -- Also a time limit of the statement.
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        step := 'failed';
        error := SQLERRM;
        UPDATE {p}_series AS s SET rollup_error = error, rollup_failures = s.rollup_failures + 1,
            rollup_failed_at = clock_timestamp()
        WHERE s.device = series.device AND s.metric = series.metric;
    END;
END $body$;
