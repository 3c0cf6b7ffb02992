-- When the task of a reading was first accepted, and a sequence within that time; null before there were versions.
ALTER TABLE {p}_readings ADD COLUMN accepted_at timestamptz, ADD COLUMN sequence int;

-- The values of a reading that tasks with different ids have sent. The latest is the stored one.
CREATE TABLE {p}_versions (
    device text, metric text, time timestamptz, task_id text, accepted_at timestamptz, sequence int,
    value double precision NOT NULL, unit text, raw double precision NOT NULL, raw_unit text, calibration text,
    quality text[] NOT NULL, worker text NOT NULL, PRIMARY KEY (device, metric, time, task_id));
