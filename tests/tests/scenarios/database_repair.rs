//! What is missing or changed of the Postgres tables: named by `check`, and created again by `migrate`.

use anyhow::Result;
use garenne_tests::harness::{postgres::Postgres, process::Ended, test_env::TestEnv};

use super::database::{command, reading, storing};

/// Every column, index and function with its definition, without partitions. A table's columns have no order.
const DEFINITIONS: &str = "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
    SELECT concat_ws(' ', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                     pg_get_expr(adbin, adrelid))
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0
    AND NOT attisdropped
    UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE relnamespace = 'public'::regnamespace AND NOT relispartition
    UNION ALL SELECT concat_ws(' ', oid::regprocedure, prosrc, prosecdef, provolatile, proparallel, proconfig, proacl) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace) AS definitions(line)";

/// Drops every function, and every index that is no key.
const DROP_ALL: &str = "DO $$
    DECLARE statement text;
    BEGIN
        FOR statement IN
            SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
            UNION ALL SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index
            JOIN pg_class ON pg_class.oid = indexrelid
            WHERE relnamespace = 'public'::regnamespace AND NOT indisunique
        LOOP EXECUTE statement; END LOOP;
    END $$";

/// Drops every primary key.
const DROP_KEYS: &str = "DO $$
    DECLARE statement text;
    BEGIN
        FOR statement IN SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint
            WHERE connamespace = 'public'::regnamespace AND contype = 'p' AND conparentid = 0
            AND conrelid <> 'garenne_schema_history'::regclass
        LOOP EXECUTE statement; END LOOP;
    END $$";

/// What is missing is named, no worker becomes ready without it, and `migrate` creates it, unless rows would be lost.
#[tokio::test]
async fn what_is_missing_is_created_again() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let (url, client) = (database.url(), database.connect().await?);
    let migrate = async || command(&env, &url, &["migrate"]).await;
    assert_eq!(migrate().await?.code, Some(0));
    let complete = database.text(DEFINITIONS).await?;
    let (functions, indexes) = (15, 11);

    client.batch_execute(DROP_ALL).await?;
    let further = "DROP TABLE garenne_rejudge, garenne_rollups_day;
                   ALTER TABLE garenne_notices DROP COLUMN owner; ALTER TABLE garenne_series DROP COLUMN prunes";
    client.batch_execute(further).await?;
    let Ended { code, stdout, .. } = command(&env, &url, &["check"]).await?;
    assert_eq!((code, stdout.len()), (Some(1), functions + indexes + 4), "{stdout:?}");
    for problem in [
        "table garenne_rejudge is missing",
        "table garenne_notices has no column owner",
        "index garenne_alarms_open is missing",
        "function garenne_roll_up is missing",
    ] {
        assert!(stdout.iter().any(|line| line == problem), "{problem}: {stdout:?}");
    }
    let Ended { code, stderr, .. } = migrate().await?;
    assert_eq!(code, Some(0), "{stderr:?}");
    assert!(stderr.iter().any(|line| line == "created table garenne_rejudge, empty"), "{stderr:?}");
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    assert_eq!(command(&env, &url, &["check"]).await?.code, Some(0));

    // Without readings, the rollups of the lost ones are final.
    client
        .batch_execute(
            "INSERT INTO garenne_series VALUES ('d1', 'temperature', '2026-01-01 10:30Z', 20, 'Cel', '{}', now());
             INSERT INTO garenne_rollups_hour VALUES ('d1', 'temperature', '2026-01-01 10:00Z', 'Cel', 2, 20, 19, 21, 0, 0);
             INSERT INTO garenne_rollups_day VALUES ('d1', 'temperature', '2026-01-01Z', 'Cel', 2, 20, 19, 21, 0, 0);
             DROP TABLE garenne_readings",
        )
        .await?;
    let Ended { code, stderr, .. } = storing(&env, "refused", &url)?.launch().await?.ended().await?;
    let error = stderr.last().cloned().unwrap_or_default();
    assert_eq!(code, Some(1), "{error}");
    let missing = "table garenne_readings is missing; run `garenne database migrate` as their owner";
    assert!(error.ends_with(missing), "{error}");
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    let worker = storing(&env, "storing", &url)?.start().await?;
    reading(&env, "late", "2026-01-01T10:10:00Z", 99.0).await?;
    env.until_settled(1).await?;
    worker.stop().await?;
    client.batch_execute("SELECT garenne_roll_up('', '', 1000)").await?;
    let rollups = "SELECT (SELECT string_agg(concat(time, ' ', count), ', ') FROM garenne_rollups_hour)
                   || '; ' || (SELECT string_agg(concat(time, ' ', count), ', ') FROM garenne_rollups_day)";
    assert_eq!(database.text(rollups).await?, "2026-01-01 10:00:00+00 2; 2026-01-01 00:00:00+00 2");

    // A series is found again by its readings, whose rollups are computed again.
    client.batch_execute("DROP TABLE garenne_series CASCADE").await?;
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    let series = "SELECT string_agg(concat(device, ' ', last_value, ' ', stale), ', ') FROM garenne_series";
    let stale = "{[\"2026-01-01 10:00:00+00\",\"2026-01-01 11:00:00+00\")}";
    assert_eq!(database.text(series).await?, format!("d1 99 {stale}"));

    // Partitions.
    let drop = "DO $$
        DECLARE name text;
        BEGIN
            FOR name IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'garenne_readings'::regclass
            LOOP EXECUTE 'DROP TABLE ' || name; END LOOP;
        END $$";
    client.batch_execute(drop).await?;
    let Ended { code, stdout, .. } = command(&env, &url, &["check"]).await?;
    let lacks = ["default partition", "partition for this month", "partition for the next month"]
        .map(|what| format!("table garenne_readings has no {what}"));
    assert_eq!((code, stdout), (Some(1), lacks.to_vec()));
    assert_eq!(migrate().await?.code, Some(0));
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'garenne_readings'::regclass";
    assert_eq!(database.text(partitions).await?, "3");
    assert_eq!(command(&env, &url, &["check"]).await?.code, Some(0));

    // What null would say is not invented.
    client
        .batch_execute(
            "INSERT INTO garenne_alarms (id, device, metric, rule, since, upto, ended)
             VALUES ('a', 'd1', 'temperature', 'warm', '2026-01-01Z', '2026-01-01Z', '2026-01-01Z');
             ALTER TABLE garenne_alarms DROP COLUMN ended; ALTER TABLE garenne_alarms DROP COLUMN snoozed_by",
        )
        .await?;
    let Ended { code, stderr, .. } = migrate().await?;
    let set_aside = "ALTER TABLE garenne_alarms RENAME TO garenne_alarms_lost";
    let error = format!(
        "the values of column ended of table garenne_alarms are lost, and its rows cannot do without: restore the \
         table from a backup, or set it aside with `{set_aside}` and migrate again, which creates an empty one"
    );
    assert_eq!(code, Some(1));
    assert!(stderr.iter().any(|line| line.ends_with(&error)), "{stderr:?}");
    client.batch_execute(set_aside).await?;
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text("SELECT count(*) FROM garenne_alarms_lost").await?, "1");
    client.batch_execute("DROP TABLE garenne_alarms_lost").await?;
    assert_eq!(database.text(DEFINITIONS).await?, complete);

    // The history is known by the tables, if they are complete.
    client.batch_execute("DROP TABLE garenne_schema_history").await?;
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    client.batch_execute("DROP TABLE garenne_schema_history, garenne_rules").await?;
    let Ended { code, stderr, .. } = migrate().await?;
    let error = "table garenne_schema_history is missing, and so the version of tables that lack this: table \
                 garenne_rules is missing; restore one of them from a backup";
    assert_eq!(code, Some(1));
    assert!(stderr.iter().any(|line| line.ends_with(error)), "{stderr:?}");
    Ok(())
}

/// What the scripts say of columns, keys and functions is named if it was changed, and `migrate` restores it.
#[tokio::test]
async fn what_was_changed_is_restored() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let (url, client) = (database.url(), database.connect().await?);
    let migrate = async || command(&env, &url, &["migrate"]).await;
    assert_eq!(migrate().await?.code, Some(0));
    let complete = database.text(DEFINITIONS).await?;

    client
        .batch_execute(
            "INSERT INTO garenne_rejudge (device, metric, times) VALUES ('d1', 'temperature', '{}');
             ALTER TABLE garenne_rejudge ALTER COLUMN id DROP IDENTITY;
             ALTER TABLE garenne_corrections ALTER COLUMN id SET GENERATED BY DEFAULT;
             ALTER TABLE garenne_readings ALTER COLUMN stored_at DROP DEFAULT;
             ALTER TABLE garenne_series ALTER COLUMN pruned_before SET DEFAULT 'infinity';
             ALTER TABLE garenne_versions DROP CONSTRAINT garenne_versions_pkey;
             ALTER FUNCTION garenne_ensure_partition SECURITY INVOKER;
             ALTER FUNCTION garenne_roll_up SECURITY DEFINER;
             ALTER FUNCTION garenne_all_hours VOLATILE;
             ALTER FUNCTION garenne_hourly RESET jit;
             DROP FUNCTION garenne_counter_step;
             CREATE FUNCTION garenne_counter_step(counter jsonb) RETURNS float8 LANGUAGE sql AS 'SELECT 1.0::float8';
             CREATE OR REPLACE FUNCTION garenne_is_usable(quality text[]) RETURNS boolean LANGUAGE sql
             IMMUTABLE PARALLEL SAFE AS 'SELECT true'",
        )
        .await?;
    let Ended { code, stdout, .. } = command(&env, &url, &["check"]).await?;
    let expected = [
        "table garenne_readings: column stored_at has no default instead of the default now()",
        "table garenne_rejudge: column id has no default instead of an identity",
        "table garenne_series: column pruned_before has the default 'infinity' instead of the default '-infinity'",
        "table garenne_corrections: column id has another identity instead of an identity",
        "table garenne_versions has no unique index on device, metric, time, task_id",
        "function garenne_all_hours is changed: volatility",
        "function garenne_counter_step is missing",
        "function garenne_ensure_partition is changed: security",
        "function garenne_hourly is changed: settings",
        "function garenne_is_usable is changed: body",
        "function garenne_roll_up is changed: security",
    ];
    assert_eq!((code, stdout), (Some(1), expected.map(str::to_owned).to_vec()));

    // Without the default no reading can be stored.
    let Ended { code, stderr, .. } = storing(&env, "refused", &url)?.launch().await?.ended().await?;
    let error = stderr.last().cloned().unwrap_or_default();
    assert!(code == Some(1) && error.contains(expected[0]) && !error.contains(expected[9]), "{error}");
    assert!(stderr.iter().any(|line| line.contains(expected[9])), "{stderr:?}");

    let Ended { code, stderr, .. } = migrate().await?;
    assert_eq!(code, Some(0), "{stderr:?}");
    for done in [
        "restored the identity of column id of table garenne_rejudge",
        "restored the default now() of column stored_at of table garenne_readings",
        "restored function garenne_is_usable",
        "created the key of table garenne_versions",
    ] {
        assert!(stderr.iter().any(|line| line == done), "{done}: {stderr:?}");
    }
    client.batch_execute("DROP FUNCTION garenne_counter_step(jsonb)").await?;
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    assert_eq!(command(&env, &url, &["check"]).await?.code, Some(0));
    let insert =
        "INSERT INTO garenne_rejudge (device, metric, times) VALUES ('d1', 'temperature', '{}') RETURNING id";
    assert_eq!(client.query_one(insert, &[]).await?.get::<_, i64>(0), 2);

    // What may be null.
    client
        .batch_execute(
            "ALTER TABLE garenne_readings ALTER COLUMN raw SET NOT NULL, ALTER COLUMN worker DROP NOT NULL;
             ALTER TABLE garenne_notices ALTER COLUMN task_id SET NOT NULL",
        )
        .await?;
    let expected = [
        "table garenne_readings: column raw may not be null",
        "table garenne_readings: column worker may be null",
        "table garenne_notices: column task_id may not be null",
    ];
    assert_eq!(command(&env, &url, &["check"]).await?.stdout, expected);
    let Ended { code, stderr, .. } = storing(&env, "refused", &url)?.launch().await?.ended().await?;
    let error = stderr.last().cloned().unwrap_or_default();
    assert!(code == Some(1) && error.contains(expected[0]) && !error.contains(expected[1]), "{error}");
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text(DEFINITIONS).await?, complete);

    // Every key, and rows that do not allow one.
    client.batch_execute(DROP_KEYS).await?;
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    let twice = "ALTER TABLE garenne_monitor DROP CONSTRAINT garenne_monitor_pkey;
                 INSERT INTO garenne_monitor VALUES ('twice', now(), now()), ('twice', now(), now())";
    client.batch_execute(twice).await?;
    let Ended { code, stderr, .. } = migrate().await?;
    let error = stderr.last().cloned().unwrap_or_default();
    assert_eq!(code, Some(1), "{error}");
    for part in [
        "could not create unique index \"garenne_monitor_pkey\"",
        "table garenne_monitor has no unique index on name; remove or change these rows",
    ] {
        assert!(error.contains(part), "{error}");
    }
    client.batch_execute("DELETE FROM garenne_monitor").await?;
    assert_eq!(migrate().await?.code, Some(0));

    // Detached partitions.
    client
        .batch_execute(
            "ALTER TABLE garenne_readings DETACH PARTITION garenne_readings_default;
             DO $$ BEGIN EXECUTE format('ALTER TABLE garenne_readings DETACH PARTITION garenne_readings_%s',
                 to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')); END $$",
        )
        .await?;
    let checked = command(&env, &url, &["check"]).await?.stdout;
    for (line, what) in checked.iter().zip(["default partition", "partition for this month"]) {
        let start =
            format!("table garenne_readings has no {what}, because a table of its name is detached: ");
        assert!(line.starts_with(&start), "{line}");
    }
    assert_eq!(checked.len(), 2);
    let Ended { code, stderr, .. } = migrate().await?;
    assert!(code == Some(1) && stderr.last().is_some_and(|line| line.ends_with(&checked[0])), "{stderr:?}");
    for line in &checked {
        client.batch_execute(line.split('`').nth(1).unwrap_or_default()).await?;
    }
    assert_eq!(command(&env, &url, &["check"]).await?.code, Some(0));

    // Everybody could create partitions with the rights of the owner, in any schema.
    client
        .batch_execute(
            "GRANT EXECUTE ON FUNCTION garenne_ensure_partition TO PUBLIC;
             ALTER FUNCTION garenne_ensure_partition RESET search_path",
        )
        .await?;
    let changed = "function garenne_ensure_partition is changed: settings, rights";
    assert_eq!(command(&env, &url, &["check"]).await?.stdout, [changed]);
    assert_eq!(migrate().await?.code, Some(0));
    assert_eq!(database.text(DEFINITIONS).await?, complete);
    Ok(())
}
