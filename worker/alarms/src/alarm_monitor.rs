//! The monitor of alarms: what happens to them without a new reading.
//!
//! Each worker runs one. It announces the worker's rules, and judges again what a command has changed. One worker of the
//! fleet in each interval stores the notices that are due and closes the alarms of removed rules. All state is in the
//! database, so a worker that ends leaves nothing undone.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deadpool_postgres::Object;
use garenne::sink::SinkContext;
use garenne_database::{DatabaseError, PostgresPool, QueryResult, Tables};

use crate::{
    alarm::Rules,
    alarm_evaluator::AlarmEvaluator,
    due_notices::{self, DueNotices},
    fleet_check::{ALARM_CHECK, ALARM_INTERVAL, FleetCheck},
    part_report::PartReport,
    rejudge::Rejudging,
    relay::Relay,
    rule_registry::{ANNOUNCE_INTERVAL, RULE_LIFETIME, RuleRegistry},
};

/// The name of the part in the sink's state.
const PART: &str = "alarm monitor";
/// Time limit of a transaction.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Looks after alarms.
pub(super) struct AlarmMonitor<'a> {
    pool: PostgresPool,
    rules: Arc<Rules>,
    evaluator: &'a AlarmEvaluator,
    relay: &'a Relay,
    registry: RuleRegistry,
    due: DueNotices,
    rejudging: Rejudging,
    check: FleetCheck,
}

impl<'a> AlarmMonitor<'a> {
    pub(super) fn new(
        pool: PostgresPool,
        tables: &Tables,
        rules: Arc<Rules>,
        evaluator: &'a AlarmEvaluator,
        relay: &'a Relay,
    ) -> Self {
        Self {
            pool,
            rules,
            evaluator,
            relay,
            registry: RuleRegistry::new(tables),
            due: DueNotices::new(tables),
            rejudging: Rejudging::new(tables),
            check: FleetCheck::new(tables, ALARM_CHECK.to_owned(), ALARM_INTERVAL),
        }
    }

    /// Checks until the worker stops. After an error it tries again, with growing pauses.
    pub(super) async fn run(&self, context: &SinkContext) {
        tokio::select! {
            () = self.check_repeatedly(context) => {}
            () = context.stopping() => {}
        }
    }

    async fn check_repeatedly(&self, context: &SinkContext) {
        let mut report = PartReport::new(context, PART, "alarms not checked", ALARM_INTERVAL);
        let mut announced: Option<Instant> = None;
        let mut is_interrupted = false;
        loop {
            let checked = self.step(&mut announced, is_interrupted).await;
            is_interrupted = checked.is_err();
            tokio::time::sleep(report.ended(checked)).await;
        }
    }

    async fn step(&self, announced: &mut Option<Instant>, is_interrupted: bool) -> Result<(), DatabaseError> {
        if announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_INTERVAL) {
            self.within_limit(async |client| self.registry.announce(client, &self.rules).await).await?;
            *announced = Some(Instant::now());
        }
        while self.within_limit(async |client| self.judge_again(client).await).await? {}
        let begin = async |client: &mut Object| self.check.begin(client, is_interrupted).await;
        let Some(uninterrupted) = self.within_limit(begin).await? else { return Ok(()) };
        while self.within_limit(async |client| self.store_due(client).await).await? {}
        // Rules count as removed only after every worker had the time to announce its own.
        if uninterrupted >= RULE_LIFETIME {
            self.within_limit(async |client| self.clean_up(client).await).await?;
        }
        Ok(())
    }

    async fn within_limit<T>(
        &self,
        run: impl AsyncFnOnce(&mut Object) -> QueryResult<T>,
    ) -> Result<T, DatabaseError> {
        self.pool.within(STEP_TIMEOUT, run).await
    }

    /// Judges readings that were changed in the database. Returns whether there may be more.
    async fn judge_again(&self, client: &mut Object) -> QueryResult<bool> {
        let transaction = client.transaction().await?;
        let Some(notices) = self.rejudging.judge_next(&transaction, self.evaluator).await? else {
            return Ok(false);
        };
        self.relay.commit(transaction, notices, &[]).await?;
        Ok(true)
    }

    /// Stores the notices that are due. Returns whether there may be more.
    async fn store_due(&self, client: &mut Object) -> QueryResult<bool> {
        let transaction = client.transaction().await?;
        let notices = self.due.take(&transaction).await?;
        let may_be_more = notices.len() >= due_notices::AT_ONCE;
        self.relay.commit(transaction, notices, &[]).await?;
        Ok(may_be_more)
    }

    /// Closes the alarms of removed rules. Returns whether notices were stored.
    async fn clean_up(&self, client: &mut Object) -> QueryResult<bool> {
        let transaction = client.transaction().await?;
        let notices = self.registry.close_unruled(&transaction).await?;
        self.rejudging.delete_unruled(&transaction).await?;
        self.relay.commit(transaction, notices, &[]).await
    }
}
