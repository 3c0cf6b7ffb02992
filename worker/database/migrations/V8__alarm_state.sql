-- What alarm rules with `for` know of a series after its newest reading, by their conditions. It is valid while `pending_at`
-- is `stored_at`: who stores readings without judging them changes only the latter.
ALTER TABLE {p}_series ADD COLUMN pending jsonb, ADD COLUMN pending_at timestamptz;

-- The worker that stored a notice and will publish it; null if it publishes none. Others do so only if it is gone.
ALTER TABLE {p}_notices ADD COLUMN owner text;
