-- When the counter of a reading was at zero, if its sender says so.
ALTER TABLE {p}_readings ADD COLUMN start_time timestamptz;
ALTER TABLE {p}_versions ADD COLUMN start_time timestamptz;

-- What the newest reading that says so says of the counter, in the unit that the value was sent in, as JSON with `wraps_at`
-- and `max_per_hour`. `counter` is what a calibration makes of it.
ALTER TABLE {p}_series ADD COLUMN sent_counter jsonb;

-- The consumption from a reading to the next usable one, 0 or more. If both have start times, these decide whether the
-- counter restarted at zero; a start time that is not before the reading's own says nothing about the value. Otherwise a
-- lower value is a wrap or a restart. It is a wrap if `wraps_at` is set and the step across it is within `max_per_hour`, or,
-- without that bound, at most half of `wraps_at`. A step beyond `max_per_hour` is an exchanged meter, and not counted;
-- neither are values beyond 1e300. The same rule judges alarms (`Counter::step`).
DROP FUNCTION {p}_counter_step(jsonb, timestamptz, double precision, timestamptz, double precision);
CREATE FUNCTION {p}_counter_step(counter jsonb, base_time timestamptz, base double precision, base_start timestamptz,
                                 of_time timestamptz, value double precision, start timestamptz)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $body$
DECLARE
    wraps_at CONSTANT double precision := (counter->>'wraps_at')::double precision;
    hours CONSTANT double precision := extract(epoch FROM of_time - base_time)::double precision / 3600;
    -- A step at the bound may be a little above it, because doubles are rounded.
    most CONSTANT double precision := (counter->>'max_per_hour')::double precision * hours * (1 + 1e-9);
    across double precision;
    step double precision;
BEGIN
    IF abs(value) > 1e300 OR abs(base) > 1e300 THEN
        RETURN 0;
    END IF;
    across := value + wraps_at - base;
    step := CASE WHEN start <> base_start AND start >= of_time THEN 0
                 WHEN start <> base_start THEN value
                 WHEN value >= base THEN value - base
                 WHEN across >= 0 AND across <= coalesce(most, wraps_at / 2) THEN across
                 WHEN start = base_start THEN 0
                 ELSE value END;
    RETURN CASE WHEN step < 0 OR step > most THEN 0 ELSE step END;
END $body$;

-- The consumption of each usable reading of a period since the usable reading before it, which may be before the period.
-- A reading in another unit than that one begins anew. The first reading of all counts only from a zero before it.
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
         WHERE r.device = of_device AND r.metric = of_metric AND r.time < low AND {p}_is_usable(r.quality)
         ORDER BY r.time DESC LIMIT 1)
        UNION ALL
        SELECT r.time, coalesce(r.unit, ''), r.value, r.start_time FROM {p}_readings AS r
        WHERE r.device = of_device AND r.metric = of_metric AND r.time >= low AND r.time < high
        AND {p}_is_usable(r.quality)
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
                     AND 'counter-zero' = ANY(r.quality) ORDER BY r.time DESC LIMIT 1) AS zero), 0)
        WHEN p.base_unit = p.unit THEN {p}_counter_step(counter, p.base_time, p.base, p.base_start,
                                                        p.time, p.value, p.start_time)
        ELSE 0 END
    FROM pairs AS p WHERE p.time >= low;
END $body$;
