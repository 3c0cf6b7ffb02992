//! The report of a drill: a table, JSON, and an HTML page.

mod html;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use garenne_chaos::{
    Timeline,
    audit::{Audit, EffectSource, Totals},
};
use serde::Serialize;

use super::cli::FaultArgs;
use crate::{
    audit_table::totals_table,
    table::{grouped, lay_out},
};

/// The result of one drill.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether no task was lost and no effect doubled.
    pub kept: bool,
    /// The seed.
    pub seed: u64,
    /// The broker and its version.
    pub broker: String,
    /// The worker's command.
    pub worker: String,
    /// The number of faults of each kind.
    #[serde(rename = "trouble")]
    pub faults: FaultArgs,
    /// Seconds from the first task to the end of the drain.
    pub seconds: f64,
    /// The totals of the audit.
    pub totals: Totals,
    /// Where effects were counted.
    #[serde(rename = "witness")]
    pub effects: EffectSource,
    /// The number of tasks by their number of executions.
    pub executions: BTreeMap<usize, u64>,
    /// Publishes that were repeated because the broker did not answer.
    pub published_again: u64,
    /// Tasks that stopping workers requeued, from their receipts.
    #[serde(rename = "handed_back")]
    pub requeued: u64,
    /// Workers that ended although nothing stopped them.
    pub crashes: u64,
    /// When faults and crashes happened.
    pub timeline: Timeline,
}

impl Report {
    /// Writes `audit.ndjson`, `report.json` and `report.html` into `dir`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, audit: &Audit<'_>, dir: &Path) -> anyhow::Result<()> {
        let failed = |file: &str| format!("cannot write {}", dir.join(file).display());
        audit.write_findings(&dir.join("audit.ndjson")).with_context(|| failed("audit.ndjson"))?;
        let json = serde_json::to_string_pretty(self)?;
        fs::write(dir.join("report.json"), json).with_context(|| failed("report.json"))?;
        fs::write(dir.join("report.html"), html::page(self)?).with_context(|| failed("report.html"))
    }

    /// The report for a terminal.
    pub fn table(&self) -> String {
        let mut text = totals_table(&self.totals, "tasks", "took effect");
        let executions: Vec<_> =
            self.executions.iter().map(|(times, ids)| format!("{} {times}x", grouped(*ids))).collect();
        text += &format!("  executions per task: {}\n", executions.join(", "));
        text += &format!(
            "  published again because unconfirmed {}, requeued by stopping workers {}, crashes {}, {:.0} s\n",
            grouped(self.published_again),
            grouped(self.requeued),
            self.crashes,
            self.seconds
        );
        if self.effects == EffectSource::ExecutionLog {
            text += "  effects were not counted: no DRILL_EFFECTS was written and no --postgres-url given\n";
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
}
