//! The monitor of silences: looks for series that nothing is stored of any more.
//!
//! Each worker with rules about silence runs one, and one of them checks in each interval. A row in the database says
//! since when the fleet has been checking without a gap. A silence is raised only after some time of that, so that after
//! an outage of the database, the broker or the fleet the backlog is stored first.

use std::{fmt::Write, sync::Arc, time::Duration};

use deadpool_postgres::Object;
use garenne_database::{DatabaseError, PostgresPool, QueryResult, Tables};

use crate::{
    alarm::Rule,
    fleet_check::FleetCheck,
    notice::uuid,
    part_report::PartReport,
    relay::Relay,
    silence::{RAISED_AT_ONCE, Silences},
};
use garenne::sink::SinkContext;

/// The name of the part in the sink's state.
const PART: &str = "silence monitor";
/// Time limit of a check, and of the transaction that raises some of its silences.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The range of the time between two checks.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// The range of the time of checking without a gap after which a silence is raised. Sinks pause for at most half of the
/// shortest between their attempts, so that they have stored again by then.
const MIN_SETTLING: Duration = Duration::from_secs(10);
const MAX_SETTLING: Duration = Duration::from_secs(60);

/// Looks for silences.
pub(super) struct SilenceMonitor {
    pool: PostgresPool,
    silences: Arc<Silences>,
    interval: Duration,
    check: FleetCheck,
}

impl SilenceMonitor {
    pub(super) fn new(pool: PostgresPool, tables: &Tables, silences: Arc<Silences>) -> Self {
        let mut rules = String::new();
        for (Rule { name, device, metric, expected, .. }, silent_for) in silences.rules() {
            let _ = write!(rules, "{name}\n{}\n{metric}\n{silent_for:?}\n", device.as_str());
            if !expected.is_empty() {
                let _ = writeln!(rules, "{expected:?}");
            }
        }
        let shortest = silences.rules().map(|(_, silent_for)| silent_for).min().unwrap_or(MAX_INTERVAL);
        let interval = (shortest / 10).clamp(MIN_INTERVAL, MAX_INTERVAL);
        // A fleet whose workers have different rules checks each set of them.
        let check = FleetCheck::new(tables, format!("silence {}", uuid(&[&rules])), interval);
        Self { pool, silences, interval, check }
    }

    /// Checks until the worker stops. After an error it tries again, with growing pauses.
    pub(super) async fn run(&self, context: &SinkContext, relay: &Relay) {
        tokio::select! {
            () = self.check_repeatedly(context, relay) => {}
            () = context.stopping() => {}
        }
    }

    async fn check_repeatedly(&self, context: &SinkContext, relay: &Relay) {
        let mut report = PartReport::new(context, PART, "silence not checked", self.interval);
        let mut is_interrupted = false;
        let mut wait = self.interval;
        loop {
            tokio::time::sleep(wait).await;
            // Without deliveries no reading can be stored, which says nothing about the devices.
            if !context.is_receiving() {
                (wait, is_interrupted) = (self.interval, true);
                continue;
            }
            let checked = self.check(is_interrupted, relay).await;
            is_interrupted = checked.is_err();
            wait = report.ended(checked);
        }
    }

    /// Raises the silences that there are, unless another worker has just checked.
    async fn check(&self, is_interrupted: bool, relay: &Relay) -> Result<(), DatabaseError> {
        let begin = async |client: &mut Object| self.check.begin(client, is_interrupted).await;
        let Some(uninterrupted) = self.pool.within(STEP_TIMEOUT, begin).await? else { return Ok(()) };
        for (rule, silent_for) in self.silences.rules() {
            if uninterrupted < silent_for.clamp(MIN_SETTLING, MAX_SETTLING) {
                continue;
            }
            let raise = async |client: &mut Object| self.raise(client, rule, silent_for, relay).await;
            while self.pool.within(STEP_TIMEOUT, raise).await? >= RAISED_AT_ONCE {}
        }
        Ok(())
    }

    /// Raises silences of a rule, with their notices. Returns the number of one kind, at most.
    async fn raise(
        &self,
        client: &mut Object,
        rule: &Rule,
        silent_for: Duration,
        relay: &Relay,
    ) -> QueryResult<usize> {
        let transaction = client.transaction().await?;
        let mut notices = self.silences.raise(&transaction, rule, silent_for).await?;
        let mut count = notices.len();
        if !rule.expected.is_empty() {
            let (missing, further) = self.silences.raise_missing(&transaction, rule, silent_for).await?;
            count = count.max(missing);
            notices.extend(further);
        }
        relay.commit(transaction, notices, &[]).await?;
        Ok(count)
    }
}
