-- What the lanes of the fleet did in each step: the sums of what its workers add. `since` and `upto` are how much of the time
-- around the step somebody has observed. A mean of busy slots, slots and unsettled deliveries is its sum of values times seconds, by the
-- observed time; that of ready messages, which each worker sees in full, is by the seconds of all that asked.
CREATE TABLE {p}_lane_history (
    time timestamptz NOT NULL,
    lane text NOT NULL,
    step_seconds integer NOT NULL,
    since timestamptz NOT NULL,
    upto timestamptz NOT NULL,
    settled bigint NOT NULL,
    slot_seconds double precision NOT NULL,
    busy_seconds double precision NOT NULL,
    held_seconds double precision NOT NULL,
    ready_seconds double precision NOT NULL,
    ready_weight double precision NOT NULL,
    PRIMARY KEY (time, lane, step_seconds)
);
