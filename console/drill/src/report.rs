//! The report of a run: a table, JSON, and an HTML page.

mod html;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use garenne_operator::table::{grouped, lay_out};
use serde::Serialize;

use crate::{
    account::{EffectSource, Totals, Verdicts},
    cli::FaultArgs,
    timeline::Timeline,
};

/// The remark on tasks that were executed more than once.
const RERUN: &str = "(allowed after a crash; the effect must happen once)";

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Whether no task was lost and no effect doubled.
    pub(crate) kept: bool,
    /// The seed of the faults, if they are random.
    pub(crate) seed: Option<u64>,
    /// The broker and its version.
    pub(crate) broker: String,
    /// The worker's command.
    pub(crate) worker: String,
    /// The number of faults of each kind.
    #[serde(rename = "trouble")]
    pub(crate) faults: FaultArgs,
    /// Seconds from the first task to the end of the drain.
    pub(crate) seconds: f64,
    /// The number of tasks by verdict.
    pub(crate) totals: Totals,
    /// Where effects were counted.
    #[serde(rename = "witness")]
    pub(crate) effects: EffectSource,
    /// The number of tasks by their number of executions.
    pub(crate) executions: BTreeMap<usize, u64>,
    /// Publishes that were repeated because the broker did not answer.
    pub(crate) published_again: u64,
    /// Tasks that stopping workers requeued, from their receipts.
    #[serde(rename = "handed_back")]
    pub(crate) requeued: u64,
    /// Workers that ended although nothing stopped them.
    pub(crate) crashes: u64,
    /// When faults and crashes happened.
    pub(crate) timeline: Timeline,
}

impl Report {
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// Writes `audit.ndjson`, `report.json` and `report.html` into `dir`.
    pub(crate) fn write(&self, verdicts: &Verdicts<'_>, dir: &Path) -> anyhow::Result<()> {
        let failed = |file: &str| format!("cannot write {}", dir.join(file).display());
        verdicts.write(&dir.join("audit.ndjson")).with_context(|| failed("audit.ndjson"))?;
        fs::write(dir.join("report.json"), self.json()?).with_context(|| failed("report.json"))?;
        fs::write(dir.join("report.html"), html::page(self)?).with_context(|| failed("report.html"))
    }

    /// The report for a terminal. `tasks` is a noun in the plural, and `effect` what should happen to each once.
    pub(crate) fn table(&self, tasks: &str, effect: &str) -> String {
        let mut text = self.totals(tasks, effect);
        let executions: Vec<_> =
            self.executions.iter().map(|(times, ids)| format!("{} {times}x", grouped(*ids))).collect();
        text += &format!("executions per task: {}\n", executions.join(", "));
        text += &format!(
            "published again because unconfirmed {}, requeued by stopping workers {}, crashes {}, {:.0} s\n",
            grouped(self.published_again),
            grouped(self.requeued),
            self.crashes,
            self.seconds
        );
        if self.effects == EffectSource::ExecutionLog {
            text += "effects were not counted: no DRILL_EFFECTS was written and no --postgres-url given\n";
        }
        let rows = self.timeline.events.iter().map(|event| {
            let away = event.until - event.at;
            vec![
                format!("{:.1}s", event.at),
                event.name().to_owned(),
                event.target.clone(),
                if away > 0.0 { format!("{away:.1}s") } else { "-".to_owned() },
                event.recovered_after.map_or("-".to_owned(), |after| format!("{after:.2}s")),
            ]
        });
        let columns = [">at", "event", "target", ">outage", ">recovered after"];
        if !self.timeline.events.is_empty() {
            text += "\n";
            text += &lay_out(&columns, rows);
        }
        text
    }

    fn totals(&self, tasks: &str, effect: &str) -> String {
        let Totals { sent, once, lost, doubled, dead, rerun, repeated } = self.totals;
        let remark = |count: u64, remark: &'static str| if count == 0 { "" } else { remark };
        let mut rows = vec![
            (format!("{tasks} acknowledged to their sender"), sent, ""),
            (format!("{effect} once"), once, ""),
            ("dead letters".to_owned(), dead, remark(dead, "<- `garenne dead list` says why")),
            ("lost".to_owned(), lost, remark(lost, "<- must be 0")),
            ("effects doubled".to_owned(), doubled, remark(doubled, "<- must be 0")),
            ("executed more than once".to_owned(), rerun, remark(rerun, RERUN)),
        ];
        if repeated > 0 {
            rows.push(("acknowledged again, same id".to_owned(), repeated, ""));
        }
        let cells = |(name, count, remark): (String, u64, &str)| [name, grouped(count), remark.to_owned()];
        lay_out(&["account", ">", ""], rows.into_iter().map(cells))
    }
}
