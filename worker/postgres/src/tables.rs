//! The tables and their definition.

/// Key of the advisory lock that serializes table creation when many workers start at once.
const SCHEMA_LOCK: i64 = 0x0067_6172_656e_6e65;

/// The names of the tables, derived from the fleet's prefix.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) readings: String,
    pub(super) results: String,
    pub(super) alarms: String,
    /// The outbox: follow-up tasks that alarms start.
    pub(super) notices: String,
    /// The `reading.watch` tasks that check for silence.
    pub(super) watches: String,
}

impl Tables {
    /// The names begin with `prefix` in lower case, with `_` for each character that is no letter or digit.
    pub(super) fn new(prefix: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let stem: String = prefix.chars().map(plain).collect();
        let table = |name| format!("{stem}_{name}");
        Self {
            readings: table("readings"),
            results: table("results"),
            alarms: table("alarms"),
            notices: table("notices"),
            watches: table("watches"),
        }
    }

    /// The statements that create missing tables.
    pub(super) fn definition(&self) -> String {
        let Self { readings, results, alarms, notices, watches } = self;
        format!(
            "BEGIN;
             SELECT pg_advisory_xact_lock({SCHEMA_LOCK});
             CREATE TABLE IF NOT EXISTS {readings} (
                 device text, metric text, time timestamptz, value double precision NOT NULL, unit text,
                 raw double precision, quality text[] NOT NULL, task_id text NOT NULL, worker text NOT NULL,
                 stored_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (device, metric, time));
             CREATE TABLE IF NOT EXISTS {results} (
                 task_id text PRIMARY KEY, kind text NOT NULL, attempt int NOT NULL, worker text NOT NULL,
                 started_at timestamptz NOT NULL, duration_ms double precision NOT NULL, output jsonb NOT NULL);
             CREATE TABLE IF NOT EXISTS {alarms} (
                 id text PRIMARY KEY, device text NOT NULL, metric text NOT NULL, rule text NOT NULL,
                 since timestamptz NOT NULL, upto timestamptz NOT NULL, ended timestamptz, value double precision);
             CREATE INDEX IF NOT EXISTS {alarms}_by_device ON {alarms} (device, metric, ended);
             CREATE TABLE IF NOT EXISTS {notices} (
                 id text PRIMARY KEY, task_id text NOT NULL, kind text NOT NULL, payload jsonb NOT NULL,
                 at timestamptz NOT NULL DEFAULT now());
             CREATE INDEX IF NOT EXISTS {notices}_by_task ON {notices} (task_id);
             CREATE TABLE IF NOT EXISTS {watches} (
                 device text, metric text, rule text, watch_id text NOT NULL, missed timestamptz,
                 PRIMARY KEY (device, metric, rule));
             COMMIT"
        )
    }
}
