-- The version and the task of the reading that `declared_counter` is of: of several for one time, the latest counts. Null for
-- declarations that were taken before, which are earlier than all others of their time.
ALTER TABLE {p}_series ADD COLUMN declared_accepted timestamptz;
ALTER TABLE {p}_series ADD COLUMN declared_sequence integer;
ALTER TABLE {p}_series ADD COLUMN declared_task text;
