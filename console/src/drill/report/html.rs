//! The report as one HTML page. It has no script, loads nothing from another host, and has a light and a dark theme.

use std::fmt::Write;

use garenne_chaos::Fault;

use super::Report;
use crate::table::grouped;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 220.0;
/// Rows for the letters of the marks under the bars. Marks that are close together use different rows.
const LETTER_ROWS: usize = 4;
const LETTER: f64 = 13.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2330;--dim:#667085;--paper:#fff;--line:#d6dbe4;--done:#3b7dd8;--sent:#9aa7ba;\
--bad:#c8372d;--good:#2b8a3e;--act:#d9822b}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--paper:#14171d;--line:#333a46;--done:#6ea8fe;\
--sent:#5b6675;--bad:#ff7b72;--good:#63c174;--act:#f0a35e}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin-top:2rem}p,td,th{color:var(--ink)}.dim{color:var(--dim)}\
.verdict{font-weight:600;padding:.15rem .6rem;border-radius:.4rem;border:2px solid}.kept{color:var(--good)}.broken{color:var(--bad)}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line)}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%;height:auto;border:1px solid var(--line);border-radius:.4rem}\
.bar{fill:var(--done)}.sent{fill:none;stroke:var(--sent);stroke-width:2}.act{stroke:var(--act);stroke-width:1.5}\
.away{fill:var(--bad);opacity:.12}.axis{text-anchor:middle}\
.bad{color:var(--bad);font-weight:600}text{fill:var(--dim);font-size:12px}";

/// Renders the page.
pub(super) fn page(report: &Report) -> String {
    let mut page = String::new();
    let (class, word) = if report.kept { ("kept", "kept") } else { ("broken", "broken") };
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>Garenne drill, seed {seed}: {word}</title><style>{STYLE}</style>\
         <h1>Drill, seed {seed} <span class='verdict {class}'>promise {word}</span></h1>\
         <p class=dim>{broker} · worker <code>{worker}</code> · {seconds:.0} s</p>",
        seed = report.seed,
        broker = escaped(&report.broker),
        worker = escaped(&report.worker),
        seconds = report.seconds,
    );
    totals(&mut page, report);
    chart(&mut page, report);
    events(&mut page, report);
    page.push_str("<p class=dim>One line per task: <code>audit.ndjson</code>; all figures: <code>report.json</code>.</p></html>\n");
    page
}

fn totals(page: &mut String, report: &Report) {
    let totals = &report.totals;
    let executions: Vec<_> =
        report.executions.iter().map(|(times, ids)| format!("{} {times}×", grouped(*ids))).collect();
    let rows = [
        ("tasks confirmed to their publishers", grouped(totals.sent), false),
        ("took effect once", grouped(totals.once), false),
        ("lost", grouped(totals.lost), totals.lost > 0),
        ("effects doubled", grouped(totals.doubled), totals.doubled > 0),
        ("dead letters", grouped(totals.dead), false),
        ("executions per id", executions.join(", "), false),
        ("published again after doubt", grouped(report.published_again), false),
        ("requeued by stopping workers", grouped(report.requeued), false),
        ("workers that crashed by themselves", grouped(report.crashes), false),
    ];
    page.push_str("<h2>Account</h2><table>");
    for (name, value, bad) in rows {
        let class = if bad { "n bad" } else { "n" };
        let _ = write!(page, "<tr><td>{name}<td class='{class}'>{}", escaped(&value));
    }
    page.push_str("</table>");
}

fn chart(page: &mut String, report: &Report) {
    let timeline = &report.timeline;
    let seconds = timeline.executed.len().max(timeline.published.len()).max(1);
    let most = timeline.executed.iter().chain(&timeline.published).max().copied().unwrap_or(1).max(1);
    let x = |second: f64| second / seconds as f64 * WIDTH;
    let y = |count: u64| HEIGHT - count as f64 / most as f64 * (HEIGHT - 20.0);
    let _ = write!(
        page,
        "<h2>Timeline</h2><p class=dim>Bars: tasks begun per second, at most {}. Line: tasks published. \
         Marks: Kill, Soft stop, Hard stop, Pause, Broker restart, Network cut, Crash. Shaded: the broker or the \
         network was away.</p>\
         <svg viewBox='-12 0 {width} {height}' role=img aria-label='tasks per second with the moments of trouble'>",
        grouped(most),
        width = WIDTH + 24.0,
        height = HEIGHT + LETTER * (LETTER_ROWS as f64 + 2.0),
    );
    for away in timeline.events.iter().filter(|event| event.until > event.at) {
        let (from, until) = (x(away.at), x(away.until));
        let _ = write!(
            page,
            "<rect class=away x='{from:.1}' y='0' width='{:.1}' height='{HEIGHT}'><title>{} for {:.1} s</title></rect>",
            until - from,
            away.fault.map_or("away", Fault::as_str),
            away.until - away.at,
        );
    }
    let width = (x(1.0) - 0.5).max(0.5);
    for (second, &count) in timeline.executed.iter().enumerate() {
        let top = y(count);
        let _ = write!(
            page,
            "<rect class=bar x='{:.1}' y='{top:.1}' width='{width:.1}' height='{:.1}'><title>second {second}: {count} begun</title></rect>",
            x(second as f64),
            HEIGHT - top
        );
    }
    let points: Vec<_> = timeline
        .published
        .iter()
        .enumerate()
        .map(|(second, &count)| format!("{:.1},{:.1}", x(second as f64 + 0.5), y(count)))
        .collect();
    let _ = write!(page, "<polyline class=sent points='{}'/>", points.join(" "));
    let mut taken = [f64::NEG_INFINITY; LETTER_ROWS];
    for event in &timeline.events {
        let at = x(event.at);
        let row = taken.iter().position(|last| at - last >= LETTER).unwrap_or(LETTER_ROWS - 1);
        taken[row] = at;
        let what = event.fault.map_or("crash", Fault::as_str);
        let _ = write!(
            page,
            "<line class=act x1='{at:.1}' x2='{at:.1}' y1=0 y2='{HEIGHT}'><title>{what} of {whom} at {second:.1} s</title></line>\
             <text class=axis x='{at:.1}' y='{base:.1}'>{letter}</text>",
            whom = escaped(&event.target),
            second = event.at,
            base = HEIGHT + LETTER * (row as f64 + 1.0),
            letter = &what[..1].to_uppercase(),
        );
    }
    for part in 0..=4 {
        let second = seconds as f64 * f64::from(part) / 4.0;
        let _ = write!(
            page,
            "<text class=axis x='{:.1}' y='{:.1}'>{second:.0} s</text>",
            x(second),
            HEIGHT + LETTER * (LETTER_ROWS as f64 + 1.5)
        );
    }
    page.push_str("</svg>");
}

fn events(page: &mut String, report: &Report) {
    page.push_str("<h2>What was done</h2><table><tr><th class=n>at<th>what<th>whom<th>in its place<th class=n>away for<th class=n>work again after");
    for event in &report.timeline.events {
        let _ = write!(
            page,
            "<tr><td class=n>{:.1} s<td>{}<td>{}<td>{}<td class=n>{}<td class=n>{}",
            event.at,
            event.fault.map_or("crashed by itself", Fault::as_str),
            escaped(&event.target),
            escaped(event.replacement.as_deref().unwrap_or("–")),
            Some(event.until - event.at)
                .filter(|away| *away > 0.0)
                .map_or("–".to_owned(), |away| format!("{away:.1} s")),
            event.recovered_after.map_or("–".to_owned(), |after| format!("{after:.2} s")),
        );
    }
    page.push_str("</table>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use garenne_chaos::{
        FaultCounts, Timeline, TimelineEvent,
        audit::{EffectSource, Totals},
    };

    use super::*;

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
            seed: 7,
            broker: "RabbitMQ 4.0".into(),
            worker: "run & hide".into(),
            faults: FaultCounts::default(),
            seconds: 2.0,
            totals: Totals { sent: 30, once: 30 - lost, lost, ..Totals::default() },
            effects: EffectSource::File,
            executions: [(1, 30)].into(),
            published_again: 0,
            requeued: 3,
            crashes: 0,
            timeline,
        }
    }

    #[test]
    fn the_page_shows_the_verdict_and_loads_nothing() {
        let page = page(&report(0));
        assert!(page.contains("promise kept") && !page.contains("promise broken"));
        for outside in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(super::page(&report(2)).contains("promise broken"));
    }

    #[test]
    fn foreign_text_is_escaped() {
        let page = page(&report(0));
        assert!(page.contains("worker-&lt;1&gt;") && page.contains("run &amp; hide"), "{page}");
    }
}
