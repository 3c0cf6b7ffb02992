-- Readings in monthly partitions (UTC), with the unit of the raw value and the version of the calibration.
--
-- A plain table becomes the partition {p}_readings_legacy, which ends with the present month; its later rows move to
-- the default partition. Its grants and checks hold for the new table too. A table that somebody else has partitioned
-- keeps its partitions.
DO $migration$
DECLARE
    old pg_class;
    next_month timestamptz := (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC';
    is_empty boolean;
    statement text;
    -- Without generated columns, which cannot be written.
    columns text;
BEGIN
    SELECT * INTO old FROM pg_class WHERE oid = to_regclass('{p}_readings');
    ALTER TABLE {p}_readings ADD COLUMN raw_unit text, ADD COLUMN calibration text;
    IF old.relkind = 'p' THEN
        IF NOT EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = old.oid AND (partdefid <> 0 OR partstrat = 'h')) THEN
            CREATE TABLE {p}_readings_default PARTITION OF {p}_readings DEFAULT;
        END IF;
        RETURN;
    END IF;

    ALTER TABLE {p}_readings RENAME TO {p}_readings_legacy;
    FOR statement IN
        SELECT format('ALTER TABLE {p}_readings_legacy RENAME CONSTRAINT %I TO {p}_readings_legacy_pkey', conname)
        FROM pg_constraint WHERE conrelid = old.oid AND contype = 'p'
    LOOP
        EXECUTE statement;
    END LOOP;
    CREATE TABLE {p}_readings (
        LIKE {p}_readings_legacy INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE,
        PRIMARY KEY (device, metric, time)
    ) PARTITION BY RANGE (time);
    CREATE TABLE {p}_readings_default PARTITION OF {p}_readings DEFAULT;
    FOR statement IN
        SELECT format('ALTER TABLE {p}_readings OWNER TO %s', old.relowner::regrole)
        UNION ALL SELECT format('ALTER TABLE {p}_readings_default OWNER TO %s', old.relowner::regrole)
        UNION ALL
        SELECT format('GRANT %s ON {p}_readings TO %s', privilege_type,
                      CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM aclexplode(old.relacl) WHERE grantee <> old.relowner
    LOOP
        EXECUTE statement;
    END LOOP;

    SELECT NOT EXISTS (SELECT FROM {p}_readings_legacy) INTO is_empty;
    IF is_empty THEN
        DROP TABLE {p}_readings_legacy;
    ELSE
        SELECT string_agg(quote_ident(attname), ', ') INTO columns FROM pg_attribute
        WHERE attrelid = old.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
        EXECUTE format('WITH later AS (DELETE FROM {p}_readings_legacy WHERE time >= $1 RETURNING *)
                        INSERT INTO {p}_readings_default (%1$s) SELECT %1$s FROM later', columns) USING next_month;
        EXECUTE format(
            'ALTER TABLE {p}_readings ATTACH PARTITION {p}_readings_legacy FOR VALUES FROM (MINVALUE) TO (%L)', next_month);
    END IF;
END $migration$;

-- Creates the partition of the month that contains `at`, and moves its rows there from the default partition. Returns
-- whether it did. Does nothing for times that are further away than ten years back or one year ahead, and where another
-- partition has a part of the month. Runs with the rights of its owner, so that a worker needs none to create tables.
DO $migration$
BEGIN
    EXECUTE format($create$
CREATE FUNCTION {p}_ensure_partition(at timestamptz) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = %1$I, pg_temp SET lock_timeout = '2s' AS $body$
DECLARE
    first timestamptz := date_trunc('month', at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    next timestamptz := (date_trunc('month', at AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC';
    name text := '{p}_readings_' || to_char(first AT TIME ZONE 'UTC', 'YYYY_MM');
    columns text := (SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
                     WHERE attrelid = '{p}_readings'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '');
    fallback regclass := (SELECT nullif(partdefid, 0) FROM pg_partitioned_table WHERE partrelid = '{p}_readings'::regclass);
BEGIN
    IF at < now() - interval '10 years' OR at > now() + interval '1 year' OR to_regclass(name) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- One session at a time, and the locks in one order.
    LOCK TABLE ONLY {p}_readings IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(name) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %%I (LIKE {p}_readings INCLUDING ALL)', name);
    IF fallback IS NOT NULL THEN
        EXECUTE format('LOCK TABLE ONLY %%s IN ACCESS EXCLUSIVE MODE', fallback);
        EXECUTE format('WITH moved AS (DELETE FROM %%1$s WHERE time >= $1 AND time < $2 RETURNING *)
                        INSERT INTO %%2$I (%%3$s) SELECT %%3$s FROM moved', fallback, name, columns) USING first, next;
    END IF;
    EXECUTE format('ALTER TABLE {p}_readings ATTACH PARTITION %%I FOR VALUES FROM (%%L) TO (%%L)', name, first, next);
    RETURN true;
EXCEPTION WHEN invalid_object_definition OR invalid_table_definition THEN
    RETURN false;
END $body$
$create$, current_schema());
END $migration$;
REVOKE ALL ON FUNCTION {p}_ensure_partition(timestamptz) FROM PUBLIC;

SELECT {p}_ensure_partition(now());
SELECT {p}_ensure_partition(now() + interval '1 month');
