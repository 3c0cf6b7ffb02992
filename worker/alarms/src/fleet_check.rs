//! A check that one worker of the fleet makes in each interval.

use std::time::Duration;

use deadpool_postgres::Object;
use garenne_database::{QueryResult, Tables};

/// A gap between two checks of more than this many intervals is an interruption.
const MAX_GAP: f64 = 3.0;

/// The name of the check of alarms, which the workers with the sink always make, and the time between two.
pub(super) const ALARM_CHECK: &str = "alarms";
pub(super) const ALARM_INTERVAL: Duration = Duration::from_secs(2);

/// A check with a row in the database, which says since when the fleet has been checking without a gap.
pub(super) struct FleetCheck {
    name: String,
    interval: Duration,
    statement: String,
}

/// The SQL condition that alarms have been checked without a gap for some time, until now.
pub(super) fn is_uninterrupted(tables: &Tables, time: Duration) -> String {
    let (gap, time) = (ALARM_INTERVAL.as_secs_f64() * MAX_GAP, time.as_secs_f64());
    format!(
        "EXISTS (SELECT FROM {tables}_monitor AS m WHERE m.name = '{ALARM_CHECK}'
                 AND m.checked_at BETWEEN now() - make_interval(secs => {gap}) AND now()
                 AND m.checked_at - m.since > make_interval(secs => {time}))"
    )
}

impl FleetCheck {
    pub(super) fn new(tables: &Tables, name: String, interval: Duration) -> Self {
        // No row is returned if another worker has checked. A check in the future was dated by a clock that was set back.
        let statement = format!(
            "INSERT INTO {tables}_monitor AS m (name, since, checked_at) VALUES ($1, now(), now())
             ON CONFLICT (name) DO UPDATE SET checked_at = now(), since = CASE
                 WHEN $2 OR m.checked_at NOT BETWEEN now() - make_interval(secs => $3) AND now() THEN now()
                 ELSE m.since END
             WHERE $2 OR m.checked_at NOT BETWEEN now() - make_interval(secs => $4) AND now()
             RETURNING extract(epoch FROM checked_at - since)::float8"
        );
        Self { name, interval, statement }
    }

    /// Records a check. Returns for how long there has been no gap, or [`None`] if another worker has just checked.
    pub(super) async fn begin(&self, client: &Object, is_interrupted: bool) -> QueryResult<Option<Duration>> {
        let statement = client.prepare_cached(&self.statement).await?;
        let interval = self.interval.as_secs_f64();
        let (gap, recent) = (interval * MAX_GAP, interval / 2.0);
        let row = client.query_opt(&statement, &[&self.name, &is_interrupted, &gap, &recent]).await?;
        Ok(row.map(|row| Duration::try_from_secs_f64(row.get(0)).unwrap_or_default()))
    }
}
