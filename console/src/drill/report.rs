//! What the drill found: as a table, as JSON, and as a page.

mod html;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use serde::Serialize;

use super::{
    effects::Witness,
    plan::{Act, Counts},
    timeline::Timeline,
};
use crate::{
    audit::{Audit, Totals, totals_table, write_findings},
    table::{Column, grouped, lay_out},
};

/// Everything about one drill.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether nothing was lost and no effect doubled.
    pub kept: bool,
    /// The seed.
    pub seed: u64,
    /// The broker and its version.
    pub broker: String,
    /// The worker's command.
    pub worker: String,
    /// The trouble that was asked for.
    pub trouble: Counts,
    /// From the first task to the end of the drain, seconds.
    pub seconds: f64,
    /// The sums of the account.
    pub totals: Totals,
    /// Where effects were counted.
    pub witness: Witness,
    /// How many tasks were run how often.
    pub executions: BTreeMap<usize, u64>,
    /// Tasks sent again because nobody knew whether they had arrived.
    pub published_again: u64,
    /// Tasks handed back, by the receipts of the workers that left one.
    pub handed_back: u64,
    /// Workers that ended though nobody told them to.
    pub crashes: u64,
    /// What happened when.
    pub timeline: Timeline,
}

impl Report {
    /// Writes `audit.ndjson`, `report.json` and `report.html` into `dir`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, audit: &Audit<'_>, dir: &Path) -> anyhow::Result<()> {
        let named = |file: &str| format!("{} cannot be written", dir.join(file).display());
        write_findings(audit, &dir.join("audit.ndjson")).with_context(|| named("audit.ndjson"))?;
        let json = serde_json::to_string_pretty(self)?;
        fs::write(dir.join("report.json"), json).with_context(|| named("report.json"))?;
        fs::write(dir.join("report.html"), html::page(self)).with_context(|| named("report.html"))
    }

    /// The report for a terminal.
    pub fn table(&self) -> String {
        let mut text = totals_table(&self.totals, "tasks", "took effect");
        let often: Vec<_> =
            self.executions.iter().map(|(times, ids)| format!("{} {times}x", grouped(*ids))).collect();
        text += &format!("  executions per id: {}\n", often.join(", "));
        text += &format!(
            "  published again after doubt {}, requeued by stopping workers {}, crashes {}, {:.0} s\n",
            grouped(self.published_again),
            grouped(self.handed_back),
            self.crashes,
            self.seconds
        );
        if self.witness == Witness::ExecutionLog {
            text +=
                "  effects were not looked at: no DRILL_EFFECTS was written and no --postgres-url given\n";
        }
        let rows = self.timeline.happenings.iter().map(|happening| {
            let away = happening.until - happening.at;
            vec![
                format!("{:.1}s", happening.at),
                happening.act.map_or("crash", Act::as_str).to_owned(),
                happening.whom.clone(),
                if away > 0.0 { format!("{away:.1}s") } else { "-".to_owned() },
                happening.recovered_after.map_or("-".to_owned(), |after| format!("{after:.2}s")),
            ]
        });
        let columns = [
            Column::Figure("at"),
            Column::Text("what"),
            Column::Text("whom"),
            Column::Figure("away for"),
            Column::Figure("work again after"),
        ];
        if !self.timeline.happenings.is_empty() {
            text += "\n";
            text += &lay_out(&columns, rows);
        }
        text
    }
}
