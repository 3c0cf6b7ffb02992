-- What people corrected of stored readings, each with the reading as it was before. A deleted reading is not stored again.
CREATE TABLE {p}_corrections (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The command's record in the audit log names the same person and reason.
    command text NOT NULL, action text NOT NULL, device text NOT NULL, metric text NOT NULL, time timestamptz NOT NULL,
    -- The value and the flags that it became; null if it was deleted.
    value double precision, quality text[],
    was_value double precision NOT NULL, was_unit text, was_quality text[] NOT NULL, raw double precision, raw_unit text,
    calibration text, task_id text NOT NULL, worker text NOT NULL, stored_at timestamptz NOT NULL,
    reason text NOT NULL, corrected_by text NOT NULL, corrected_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX {p}_corrections_by_reading ON {p}_corrections (device, metric, time);
CREATE INDEX {p}_corrections_deleted ON {p}_corrections (device, time, metric) WHERE action = 'delete';
