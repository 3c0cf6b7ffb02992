-- The notices of an alarm leave one after another, by `sequence`. An alarm counts its notices, because old ones are deleted.
ALTER TABLE {p}_alarms ADD COLUMN notices int NOT NULL DEFAULT 0;
ALTER TABLE {p}_notices ADD COLUMN alarm text, ADD COLUMN sequence int;
-- What is known of the tasks of notices: when it was last heard of, and whether it is done or dead.
CREATE TABLE {p}_notice_attempts (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), has_ended boolean NOT NULL);

-- Of those that were published before, it is not known whether they are done.
UPDATE {p}_notices AS n SET alarm = o.alarm, sequence = o.sequence
FROM (SELECT id, payload #>> '{data,alarm}' AS alarm, row_number() OVER (
          PARTITION BY payload #>> '{data,alarm}' ORDER BY at, payload #>> '{data,state}' = 'cleared') AS sequence
      FROM {p}_notices) AS o
WHERE o.id = n.id AND o.alarm IS NOT NULL;
UPDATE {p}_alarms AS a SET notices = n.sequence
FROM (SELECT alarm, max(sequence) AS sequence FROM {p}_notices GROUP BY 1) AS n WHERE n.alarm = a.id;
CREATE INDEX {p}_notices_by_alarm ON {p}_notices (alarm, sequence);
