-- What people do with an alarm, and what its receivers were told. The defaults are for rows of workers of the version
-- before, which have stored the notice of the alarm with it.
ALTER TABLE {p}_alarms
    ADD COLUMN severity text NOT NULL DEFAULT 'warning',
    -- When the last notice that it is open was stored; null if none was.
    ADD COLUMN notified_at timestamptz DEFAULT now(),
    -- Whether its end is still to be told.
    ADD COLUMN clear_withheld boolean NOT NULL DEFAULT false,
    -- Whether it is of a device that never sent.
    ADD COLUMN is_missing boolean NOT NULL DEFAULT false,
    -- Why it was closed although no reading cleared it, and when.
    ADD COLUMN closed_reason text, ADD COLUMN closed_at timestamptz,
    ADD COLUMN acked_at timestamptz, ADD COLUMN acked_by text,
    ADD COLUMN snoozed_until timestamptz, ADD COLUMN snoozed_at timestamptz, ADD COLUMN snoozed_by text;
CREATE INDEX {p}_alarms_current ON {p}_alarms (since) WHERE ended IS NULL AND withdrawn_at IS NULL;
CREATE INDEX {p}_alarms_withheld ON {p}_alarms (id) WHERE clear_withheld;

-- Times in which the alarms of devices (one, or a prefix and *) send no notices.
CREATE TABLE {p}_maintenance (
    id text PRIMARY KEY, device text NOT NULL, starts timestamptz NOT NULL, ends timestamptz NOT NULL, reason text NOT NULL,
    created_by text NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), ended_by text);
CREATE INDEX {p}_maintenance_by_end ON {p}_maintenance (ends);

-- The rules that workers have, each in every form that some worker has. What notices of open alarms need of them.
CREATE TABLE {p}_rules (
    name text, definition text, device text NOT NULL, metric text NOT NULL, describes text NOT NULL, unit text, webhook text NOT NULL,
    remind_seconds double precision, expected text[] NOT NULL, first_seen timestamptz NOT NULL DEFAULT now(), announced_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, definition));

-- Readings that were changed in the database, by a device's metric: their alarms are to be judged again.
CREATE TABLE {p}_rejudge (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device text NOT NULL, metric text NOT NULL,
    times timestamptz[] NOT NULL, at timestamptz NOT NULL DEFAULT now());
