//! The tables and their definition.

use derive_more::Display;

/// Key of the advisory lock that serializes table creation when many workers start at once.
const SCHEMA_LOCK: i64 = 0x0067_6172_656e_6e65;

/// The common beginning of the tables' names, which end with `_readings`, `_results`, `_alarms`, `_notices` (the outbox:
/// follow-up tasks that alarms start) and `_watches` (the `reading.watch` tasks that check for silence).
#[derive(Clone, Debug, Display)]
pub(super) struct Tables(String);

impl Tables {
    /// `prefix` in lower case, with `_` for each character that is no letter or digit.
    pub(super) fn new(prefix: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        Self(prefix.chars().map(plain).collect())
    }

    /// The statements that create missing tables.
    pub(super) fn definition(&self) -> String {
        format!(
            "BEGIN;
             SELECT pg_advisory_xact_lock({SCHEMA_LOCK});
             CREATE TABLE IF NOT EXISTS {self}_readings (
                 device text, metric text, time timestamptz, value double precision NOT NULL, unit text,
                 raw double precision, quality text[] NOT NULL, task_id text NOT NULL, worker text NOT NULL,
                 stored_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (device, metric, time));
             CREATE TABLE IF NOT EXISTS {self}_results (
                 task_id text PRIMARY KEY, kind text NOT NULL, attempt int NOT NULL, worker text NOT NULL,
                 started_at timestamptz NOT NULL, duration_ms double precision NOT NULL, output jsonb NOT NULL);
             CREATE TABLE IF NOT EXISTS {self}_alarms (
                 id text PRIMARY KEY, device text NOT NULL, metric text NOT NULL, rule text NOT NULL,
                 since timestamptz NOT NULL, upto timestamptz NOT NULL, ended timestamptz, value double precision);
             CREATE INDEX IF NOT EXISTS {self}_alarms_by_device ON {self}_alarms (device, metric, ended);
             CREATE TABLE IF NOT EXISTS {self}_notices (
                 id text PRIMARY KEY, task_id text NOT NULL, kind text NOT NULL, payload jsonb NOT NULL,
                 at timestamptz NOT NULL DEFAULT now());
             CREATE INDEX IF NOT EXISTS {self}_notices_by_task ON {self}_notices (task_id);
             CREATE TABLE IF NOT EXISTS {self}_watches (
                 device text, metric text, rule text, watch_id text NOT NULL, missed timestamptz,
                 PRIMARY KEY (device, metric, rule));
             COMMIT"
        )
    }
}
