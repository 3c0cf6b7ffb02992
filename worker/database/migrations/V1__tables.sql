-- The tables as they were before they had versions. Existing ones are adopted.
CREATE TABLE IF NOT EXISTS {p}_readings (
    device text, metric text, time timestamptz, value double precision NOT NULL, unit text,
    raw double precision, quality text[] NOT NULL, task_id text NOT NULL, worker text NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (device, metric, time));

CREATE TABLE IF NOT EXISTS {p}_results (
    task_id text PRIMARY KEY, kind text NOT NULL, attempt int NOT NULL, worker text NOT NULL,
    started_at timestamptz NOT NULL, duration_ms double precision NOT NULL, output jsonb NOT NULL);

CREATE TABLE IF NOT EXISTS {p}_alarms (
    id text PRIMARY KEY, device text NOT NULL, metric text NOT NULL, rule text NOT NULL,
    since timestamptz NOT NULL, upto timestamptz NOT NULL, ended timestamptz, value double precision);
CREATE INDEX IF NOT EXISTS {p}_alarms_by_device ON {p}_alarms (device, metric, ended);

CREATE TABLE IF NOT EXISTS {p}_notices (
    id text PRIMARY KEY, task_id text NOT NULL, kind text NOT NULL, payload jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT now());
CREATE INDEX IF NOT EXISTS {p}_notices_by_task ON {p}_notices (task_id);

CREATE TABLE IF NOT EXISTS {p}_watches (
    device text, metric text, rule text, watch_id text NOT NULL, missed timestamptz,
    PRIMARY KEY (device, metric, rule));
