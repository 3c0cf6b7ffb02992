-- Finds old results by blocks of the table; costs nearly nothing when a result is stored.
CREATE INDEX {p}_results_by_start ON {p}_results USING brin (started_at);
