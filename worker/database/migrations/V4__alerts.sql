-- A notice is marked when it is published, and an alarm when late readings show that there was none. A silence has no
-- task that causes it; the trace is that of the task.
ALTER TABLE {p}_notices ADD COLUMN published_at timestamptz, ADD COLUMN trace text, ALTER COLUMN task_id DROP NOT NULL;
DROP INDEX IF EXISTS {p}_notices_by_task;
-- The tasks that looked for silence are replaced by the table of series.
DELETE FROM {p}_notices WHERE kind = 'reading.watch';
DROP TABLE IF EXISTS {p}_watches;
-- Until now a notice was published before its task was acked. The newest ones may not be: better twice than not at all.
UPDATE {p}_notices SET published_at = now() WHERE at < now() - interval '1 minute';
CREATE INDEX {p}_notices_unpublished ON {p}_notices (at) WHERE published_at IS NULL;

ALTER TABLE {p}_alarms ADD COLUMN withdrawn_at timestamptz;
-- Alarms are looked up by rule and time, because a late reading may concern any of them.
CREATE INDEX {p}_alarms_by_rule ON {p}_alarms (device, metric, rule, since);
DROP INDEX IF EXISTS {p}_alarms_by_device;
-- Each stored reading of a series with a rule about silence looks for an open alarm.
CREATE INDEX {p}_alarms_open ON {p}_alarms (device, metric, rule) WHERE ended IS NULL;

-- Since when the fleet has been checking without a gap, by the name of the check.
CREATE TABLE {p}_monitor (name text PRIMARY KEY, since timestamptz NOT NULL, checked_at timestamptz NOT NULL);
