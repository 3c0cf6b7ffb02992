//! The report as an HTML page.

use garenne_operator::table::grouped;
use minijinja::{Environment, UndefinedBehavior, context, value::Serde};
use serde::Serialize;

use super::{Report, counted};
use crate::timeline::TimelineEvent;

/// Rows for the letters of the marks under the bars. Marks that are close together use different rows.
const LETTER_ROWS: usize = 4;
/// Width of a letter, as a share of the chart.
const LETTER_WIDTH: f64 = 0.013;

/// An event with what the page shows of it.
#[derive(Serialize)]
struct Mark<'r> {
    #[serde(flatten)]
    event: &'r TimelineEvent,
    name: &'static str,
    /// Seconds for which the broker or the network was away.
    away: f64,
    /// The row of its letter.
    row: usize,
}

pub(super) fn page(report: &Report) -> Result<String, minijinja::Error> {
    let timeline = &report.timeline;
    let seconds = timeline.executed.len().max(timeline.published.len()).max(1);
    let most = timeline.executed.iter().chain(&timeline.published).max().copied().unwrap_or(1).max(1);
    let mut last_in_row = [f64::NEG_INFINITY; LETTER_ROWS];
    let marks = timeline.events.iter().map(|event| {
        let TimelineEvent { at, until, .. } = *event;
        let is_free = |last: &f64| at - last >= LETTER_WIDTH * seconds as f64;
        let row = last_in_row.iter().position(is_free).unwrap_or(LETTER_ROWS - 1);
        last_in_row[row] = at;
        Mark { event, name: event.name(), away: until - at, row }
    });
    let (report, marks) = (Serde(report), Serde(marks.collect::<Vec<_>>()));
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("grouped", grouped);
    environment.add_filter("counted", counted);
    environment.add_filter("fixed", |number: f64, digits: usize| format!("{number:.digits$}"));
    // Text is escaped, because the name ends with .html.
    let template = environment.template_from_named_str("report.html", include_str!("../report.html"))?;
    template.render(context! { report, marks, seconds, most })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        account::{EffectSource, Totals},
        cli::FaultArgs,
        engine::Crashes,
        fault::Fault,
        timeline::Timeline,
    };

    fn report(lost: u64) -> Report {
        let event = TimelineEvent {
            at: 1.5,
            until: 1.5,
            fault: Some(Fault::Kill),
            target: "worker-<1>".into(),
            replacement: Some("worker-2".into()),
            recovered_after: Some(0.25),
        };
        let mut timeline = Timeline::default();
        timeline.events.push(event);
        timeline.published = vec![10, 20];
        timeline.executed = vec![5, 25];
        Report {
            kept: lost == 0,
            seed: Some(7),
            broker: "RabbitMQ 4.0".into(),
            worker: "run & hide".into(),
            faults: FaultArgs::default(),
            seconds: 2.0,
            totals: Totals { sent: 30, executed: 30, once: Some(30 - lost), lost, ..Totals::default() },
            effects: EffectSource::File,
            executions: [(1, 30)].into(),
            published_again: Some(0),
            requeued: Some(3),
            crashes: Crashes { killed: 1, by_themselves: 0 },
            timeline,
        }
    }

    #[test]
    fn the_page_shows_the_verdict_and_loads_nothing() {
        let page = page(&report(0)).unwrap();
        assert!(page.contains("promise kept") && !page.contains("promise broken"));
        for outside in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(super::page(&report(2)).unwrap().contains("promise broken"));
    }

    #[test]
    fn the_page_shows_figures_events_and_tasks_per_second() {
        let page = page(&report(0)).unwrap();
        for shown in [
            "requeued by stopping workers<td class=n>3\n",
            "effects doubled<td class='n '>not counted\n",
            "published again because unconfirmed<td class=n>0\n",
            "workers that were killed<td class=n>1\n",
            "executions per task<td class=n>30 1×\n",
            "<title>second 1: 25 begun</title>",
            "points='250.0,140.0 750.0,60.0 '",
            "y='233'>K</text>",
            "<td>worker-2\n  <td class=n>–\n  <td class=n>0.25 s\n",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
    }

    #[test]
    fn foreign_text_is_escaped() {
        let page = page(&report(0)).unwrap();
        assert!(page.contains("worker-&lt;1&gt;") && page.contains("run &amp; hide"), "{page}");
    }
}
