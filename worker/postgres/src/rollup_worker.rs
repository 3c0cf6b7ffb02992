//! Computes rollups beside the writes.
//!
//! Each worker has one of these. A lock in the database lets one of them compute at a time, in steps of one transaction,
//! so that a worker that is killed leaves nothing half done.

use std::time::Duration;

use garenne_common::text::printable;
use garenne_database::{
    Connection, DatabaseError, PostgresPool, Tables,
    rollups::{self, Place, RollUp, Step},
};

use garenne::sink::SinkContext;
use garenne_alarms::PartReport;

/// The name of the part in the sink's state.
const PART: &str = "rollups";
/// Time between two passes over the series.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time limit of a step on this side, longer than the server's.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct RollupWorker {
    pool: PostgresPool,
    tables: Tables,
    roll_up: RollUp,
}

impl RollupWorker {
    pub(super) fn new(pool: PostgresPool, tables: &Tables) -> Self {
        Self { pool, tables: tables.clone(), roll_up: RollUp::new(tables) }
    }

    /// Computes until the worker stops. After an error it tries again, with growing pauses.
    pub(super) async fn run(&self, context: &SinkContext) {
        tokio::select! {
            () = self.compute_repeatedly(context) => {}
            () = context.stopping() => {}
        }
    }

    async fn compute_repeatedly(&self, context: &SinkContext) {
        let mut report = PartReport::new(context, PART, "rollups not computed", INTERVAL);
        loop {
            let wait = report.ended(self.pass(context).await);
            tokio::time::sleep(wait).await;
        }
    }

    /// One pass over the series. One that fails stops no other; the sink's metrics have the number of those that fail.
    async fn pass(&self, context: &SinkContext) -> Result<(), DatabaseError> {
        let mut place = Place::default();
        loop {
            let step = async |client: &mut Connection| self.roll_up.step(client, &mut place).await;
            match self.pool.within(STEP_TIMEOUT, step).await? {
                Step::Computed => {}
                Step::Failed(series) => {
                    tracing::warn!("{}, will be retried", printable(&series.to_string()));
                }
                Step::End | Step::Busy => break,
            }
        }
        let failing = async |client: &mut Connection| rollups::failing(client, &self.tables).await;
        context.set_aside(PART, self.pool.within(STEP_TIMEOUT, failing).await?.len());
        Ok(())
    }
}
