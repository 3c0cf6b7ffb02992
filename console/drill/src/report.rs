//! The report of a run: a table, JSON, and an HTML page.

mod html;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use garenne_operator::table::{grouped, lay_out};
use serde::Serialize;

use crate::{
    account::{EffectSource, Totals, Verdicts},
    cli::FaultArgs,
    engine::Crashes,
    timeline::Timeline,
};

/// The remark on tasks that were executed more than once.
const RERUN: &str = "(allowed after a crash; the effect must happen once)";

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Whether no task was lost, and no effect doubled if effects were counted.
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
    pub(crate) totals: Totals,
    #[serde(rename = "witness")]
    pub(crate) effects: EffectSource,
    /// The number of tasks by their number of executions.
    pub(crate) executions: BTreeMap<usize, u64>,
    /// Publishes that were repeated because the broker did not answer; null if that was not counted.
    pub(crate) published_again: Option<u64>,
    /// Tasks that stopping workers requeued, from their receipts; null if no worker wrote one.
    #[serde(rename = "handed_back")]
    pub(crate) requeued: Option<u64>,
    pub(crate) crashes: Crashes,
    /// When faults and crashes happened.
    pub(crate) timeline: Timeline,
}

/// A figure, or that it was not counted.
fn counted(count: Option<u64>) -> String {
    count.map_or("not counted".to_owned(), grouped)
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
            "published again because unconfirmed: {}, requeued by stopping workers: {}, {:.0} s\n",
            counted(self.published_again),
            counted(self.requeued),
            self.seconds
        );
        let Crashes { killed, by_themselves } = self.crashes;
        text += &format!("crashes: {killed} killed, {by_themselves} by themselves\n");
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
        let Totals { sent, executed, once, lost, doubled, dead, rerun, repeated } = self.totals;
        let row = |name: String, count: Option<u64>, remark: &'static str| {
            (name, count, if count.is_none_or(|count| count == 0) { "" } else { remark })
        };
        let mut rows = vec![
            row(format!("{tasks} acknowledged to their sender"), Some(sent), ""),
            row("executed at least once".to_owned(), Some(executed), ""),
            row(format!("{effect} once"), once, ""),
            row("dead letters".to_owned(), Some(dead), "<- `garenne dead list` says why"),
            row("lost".to_owned(), Some(lost), "<- must be 0"),
            row("effects doubled".to_owned(), doubled, "<- must be 0"),
            row("executed more than once".to_owned(), Some(rerun), RERUN),
        ];
        if repeated > 0 {
            rows.push(row("acknowledged again, same id".to_owned(), Some(repeated), ""));
        }
        let cells =
            |(name, count, remark): (String, Option<u64>, &str)| [name, counted(count), remark.to_owned()];
        lay_out(&["account", ">", ""], rows.into_iter().map(cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn figures_that_were_not_counted_are_not_0() {
        let totals = Totals { sent: 600, executed: 600, rerun: 4, ..Totals::default() };
        let executions = [(1, 596), (2, 4)].into();
        let crashes = Crashes { killed: 3, by_themselves: 0 };
        let report = Report { kept: true, totals, executions, crashes, seconds: 30.0, ..Report::default() };
        assert_eq!(
            account(&report.table("tasks", "took effect")),
            [
                "account",
                "tasks acknowledged to their sender 600",
                "executed at least once 600",
                "took effect once not counted",
                "dead letters 0",
                "lost 0",
                "effects doubled not counted",
                "executed more than once 4 (allowed after a crash; the effect must happen once)",
                "executions per task: 596 1x, 4 2x",
                "published again because unconfirmed: not counted, requeued by stopping workers: not counted, 30 s",
                "crashes: 3 killed, 0 by themselves",
                "effects were not counted: no DRILL_EFFECTS was written and no --postgres-url given",
            ]
        );
        let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        for figure in [
            &json["totals"]["once"],
            &json["totals"]["doubled"],
            &json["published_again"],
            &json["handed_back"],
        ] {
            assert_eq!(*figure, serde_json::Value::Null, "{json:#}");
        }
        assert_eq!(json["crashes"], serde_json::json!({ "killed": 3, "by_themselves": 0 }));
    }

    #[test]
    fn figures_that_were_counted_are_numbers() {
        let totals = Totals { sent: 3, executed: 3, once: Some(1), doubled: Some(2), ..Totals::default() };
        let report = Report {
            totals,
            effects: EffectSource::Postgres,
            published_again: Some(0),
            requeued: Some(12_345),
            ..Report::default()
        };
        let shown = account(&report.table("readings", "stored"));
        assert_eq!(
            (shown[3].as_str(), shown[6].as_str()),
            ("stored once 1", "effects doubled 2 <- must be 0")
        );
        assert_eq!(
            shown[9],
            "published again because unconfirmed: 0, requeued by stopping workers: 12,345, 0 s"
        );
        assert_eq!(shown.len(), 11, "{shown:?}");
    }
}
