//! The end of a drill: the fleet is stopped, effects and dead letters are counted, and the report is written.

use std::{collections::BTreeMap, time::Duration};

use garenne_chaos::audit::{Audit, EffectSource, count_effects};
use garenne_common::{
    backoff::Backoff,
    config::SecretUrl,
    exit::{Exit, Failure},
    resilience::Retry,
};

use super::{report::Report, run::Drill};
use crate::{dead, output};

/// Limit of the soft stop of all workers.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);
/// Attempts to count the effects after the first, within about ten seconds, if the database's URL is read again from a file.
const COUNT_RETRIES: usize = 7;

impl Drill<'_> {
    /// Stops the fleet, writes the report, and returns whether no task was lost or doubled.
    pub(super) async fn conclude(mut self, broker: String) -> Result<Exit, Failure> {
        let seconds = self.engine.seconds();
        self.print_progress();
        self.engine.stop(STOP_TIMEOUT).await?;
        let source = self.count_outcomes().await?;
        self.engine.timeline.conclude();
        let audit = Audit::of(&self.engine.account);
        let mut executions: BTreeMap<usize, u64> = BTreeMap::new();
        for finding in &audit.findings {
            *executions.entry(finding.executions).or_default() += 1;
        }
        let report = Report {
            kept: audit.totals.kept(),
            seed: self.args.seed,
            broker,
            worker: self.args.worker.clone().unwrap_or_else(|| "garenne-worker".to_owned()),
            faults: self.args.faults.clone(),
            seconds,
            totals: audit.totals,
            effects: source,
            executions,
            published_again: self.published.repeated(),
            requeued: self.engine.requeued,
            crashes: self.engine.crashes,
            timeline: self.engine.timeline.clone(),
        };
        report.write(&audit, &self.dir)?;
        if self.args.json {
            let json = serde_json::to_string_pretty(&report).map_err(anyhow::Error::from)?;
            output::json(&format!("{json}\n"))?;
        } else {
            let file = self.dir.join("report.html");
            output::lines(&format!("{}\nreport: {}\n", report.table(), file.display()))?;
        }
        if audit.totals.sent == 0 {
            return Err(Failure::new(Exit::Failed, "no task was published: there is nothing to audit"));
        }
        Ok(if report.kept { Exit::Done } else { Exit::Failed })
    }

    /// Counts the effects, and reads the dead letters if tasks are missing among the effects.
    pub(super) async fn count_outcomes(&mut self) -> Result<EffectSource, Failure> {
        let settings = &self.operator.settings;
        let file = self.dir.join(super::run::EFFECTS_FILE_NAME);
        let sql = self.args.effects_sql.as_deref();
        let rotates = settings.postgres_url.as_ref().is_some_and(|url| url.file().is_some());
        // The password may have changed since the start, or be about to change in its file.
        let retry = Retry::new(Backoff::default(), if rotates { COUNT_RETRIES } else { 0 });
        let count = || async {
            let postgres = match &settings.postgres_url {
                Some(url) => Some(url.read_again().await.unwrap_or_else(|_| url.clone())),
                None => None,
            };
            let postgres = postgres.as_ref().map(SecretUrl::expose);
            count_effects(&file, postgres, sql, &settings.common.prefix).await
        };
        let (source, effects) = retry.run(count).await?;
        let account = &mut self.engine.account;
        account.set_effects(effects);
        if account.unresolved() > 0 {
            account.set_dead(dead::reasons(self.operator).await?);
        }
        Ok(source)
    }
}
