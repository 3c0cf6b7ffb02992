//! The end of a drill: everybody is stopped, everything is counted, and the promise is judged.

use std::{collections::BTreeMap, time::SystemTime};

use garenne_common::exit::{Exit, Failure};

use super::{
    effects,
    report::Report,
    run::{Drill, STOP_WITHIN, failed},
};
use crate::{audit::Audit, dead, output};

impl Drill<'_> {
    /// Stops the crew, writes the report and answers whether the promise was kept.
    pub(super) async fn account(mut self, broker: String) -> Result<Exit, Failure> {
        let seconds = self.timeline.seconds(SystemTime::now());
        self.say();
        self.crew.stop(STOP_WITHIN).await;
        for ended in self.crew.ended().map_err(failed)? {
            self.handed_back += ended.receipt.map_or(0, |receipt| receipt.requeued);
        }
        self.read_logs()?;
        let settings = &self.operator.settings;
        let postgres = settings.postgres_url.as_ref().map(|url| url.expose());
        let file = self.dir.join("effects.ndjson");
        let (witness, effects) =
            effects::count(&file, postgres, self.args.effects_sql.as_deref(), &settings.common.prefix)
                .await?;
        self.evidence.effects = effects;
        self.evidence.dead = dead::reasons(self.operator).await?;
        self.timeline.conclude();
        let audit = Audit::of(&self.sent, &self.evidence);
        let mut executions: BTreeMap<usize, u64> = BTreeMap::new();
        for finding in &audit.findings {
            *executions.entry(finding.executions).or_default() += 1;
        }
        let report = Report {
            kept: audit.totals.kept(),
            seed: self.args.seed,
            broker,
            worker: self.args.worker.clone().unwrap_or_else(|| "garenne-worker".to_owned()),
            trouble: self.args.counts(),
            seconds,
            totals: audit.totals,
            witness,
            executions,
            published_again: self.published.again(),
            handed_back: self.handed_back,
            crashes: self.crashes,
            timeline: self.timeline,
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
            return Err(Failure::new(Exit::Failed, "nothing was published: the account proves nothing"));
        }
        Ok(if report.kept { Exit::Done } else { Exit::Failed })
    }
}
