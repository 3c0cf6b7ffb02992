//! Draws the fleet.

use std::cmp::Reverse;

use garenne_common::text::printable;
use garenne_operator::table::{duration, grouped};
use ratatui::{
    Frame,
    crossterm::event::{Event, KeyCode, KeyEventKind},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Table, Wrap},
};

use crate::{
    diagnose::Severity,
    fleet::{GroupTotals, MemberView, Pauses, State, groups, worker_row},
    lane_sample::LaneSample,
    monitor::{KindPoint, Now, Point},
};

/// Limit on rows of the kinds' table; the busiest kinds come first.
const MAX_KINDS: usize = 8;
/// Limit on problems; the worst come first.
const MAX_PROBLEMS: usize = 6;

/// Stands for a figure that is not known.
const UNKNOWN: &str = "unknown";

/// The scroll position.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Number of workers above the first visible one.
    skipped: usize,
}

fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0}µs", seconds * 1e6),
        Some(seconds) => duration((seconds * 1e3) as u64),
    }
}

/// Escapes control characters.
fn shown(text: &str) -> String {
    printable(text).into_owned()
}

fn rate(rate: f64) -> String {
    if rate >= 100.0 { grouped(rate as u64) } else { format!("{rate:.1}") }
}

fn colour(state: State) -> Color {
    match state {
        State::Open => Color::Green,
        State::Quiet | State::Stopping => Color::Yellow,
        State::Silent => Color::Red,
        State::Unknown | State::Unconfirmed | State::Stopped => Color::DarkGray,
    }
}

fn draw_table<'r>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: impl IntoIterator<Item = (&'static str, Constraint)>,
    rows: impl IntoIterator<Item = Row<'r>>,
) {
    let (titles, widths): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::DIM));
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

impl Screen {
    /// Scrolls with the arrow keys, or `j` and `k`.
    pub(super) fn handle(&mut self, event: &Event) {
        let Event::Key(key) = event else { return };
        if key.kind == KeyEventKind::Release {
            return;
        }
        match key.code {
            KeyCode::Down | KeyCode::Char('j') => self.skipped += 1,
            KeyCode::Up | KeyCode::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            KeyCode::PageDown => self.skipped += 10,
            KeyCode::PageUp => self.skipped = self.skipped.saturating_sub(10),
            KeyCode::Home => self.skipped = 0,
            _ => {}
        }
    }

    /// Draws the screen.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, now: &Now) {
        let (lanes, kinds) = now
            .point
            .as_ref()
            .map_or((0, 0), |point| (point.sample.lanes.len(), point.kinds.len().min(MAX_KINDS)));
        let height = |rows: usize| Constraint::Length(u16::try_from(rows + 2).unwrap_or(u16::MAX));
        let problems = problem_lines(now);
        let rows = [
            Constraint::Length(2),
            Constraint::Length(problems.len() as u16),
            height(lanes),
            height(kinds),
            Constraint::Min(3),
            Constraint::Length(1),
        ];
        let [top, verdict, lanes, kinds, workers, bottom] = Layout::vertical(rows).areas(frame.area());
        title(frame, top, now);
        frame.render_widget(Paragraph::new(problems), verdict);
        draw_lanes(frame, lanes, now);
        draw_kinds(frame, kinds, now);
        self.draw_workers(frame, workers, now);
        let help = "q quit   ↑ ↓ scroll workers   `garenne dashboard` shows the last hour and has actions";
        frame.render_widget(Paragraph::new(help), bottom);
    }

    fn draw_workers(&mut self, frame: &mut Frame<'_>, area: Rect, now: &Now) {
        self.skipped = self.skipped.min(now.workers.len().saturating_sub(1));
        let shown = &now.workers[self.skipped.min(now.workers.len())..];
        let width = shown.iter().map(|worker| shown_width(worker.process.id())).max().unwrap_or(0).max(6);
        let head = format!("{:width$} {:8} busy/slots +queued, longest running task", "worker", "state");
        let head = Line::styled(head, Style::new().add_modifier(Modifier::DIM));
        let lines = shown.iter().take(area.height.into()).flat_map(|worker| worker_lines(worker, width));
        // Wrapped, so that ids are whole.
        let text = Paragraph::new([head].into_iter().chain(lines).collect::<Vec<_>>());
        frame.render_widget(text.wrap(Wrap { trim: false }), area);
    }
}

fn shown_width(text: &str) -> usize {
    shown(text).chars().count()
}

/// A worker, and below it its longest running task.
fn worker_lines(worker: &MemberView, width: usize) -> Vec<Line<'static>> {
    let [id, state, lanes, task, running_for, heard] = worker_row(worker).map(|cell| shown(&cell));
    let state = Span::styled(format!("{state:8}"), colour(worker.state));
    let first = vec![format!("{id:width$} ").into(), state, format!(" {lanes}  {heard}").into()];
    let second = (!task.is_empty()).then(|| Line::from(format!("    {running_for:>6} {task}")));
    [Line::from(first)].into_iter().chain(second).collect()
}

/// The verdict, and the worst problems with the next step of the worst one.
fn problem_lines(now: &Now) -> Vec<Line<'static>> {
    let colour = |severity| match severity {
        Severity::Critical => Color::Red,
        Severity::Warning => Color::Yellow,
        Severity::Notice => Color::Reset,
    };
    let worst = now.problems.first();
    let style = match worst {
        Some(worst) => colour(worst.severity),
        None if now.has_looked => Color::Green,
        None => Color::Reset,
    };
    // A notice needs no step.
    let urgent = worst.filter(|worst| worst.severity < Severity::Notice);
    let next = urgent.map(|worst| format!(": {}", worst.next)).unwrap_or_default();
    let verdict = Line::styled(shown(&format!("{}{next}", now.verdict)), Style::new().fg(style));
    let problems = now.problems.iter().take(MAX_PROBLEMS).map(|problem| {
        let severity =
            Span::styled(format!("  {:<8}  ", problem.severity.to_string()), colour(problem.severity));
        Line::from(vec![severity, shown(&problem.line(now.at)).into()])
    });
    [verdict].into_iter().chain(problems).collect()
}

fn title(frame: &mut Frame<'_>, area: Rect, now: &Now) {
    let count = |state| now.workers.iter().filter(|worker| worker.state == state).count();
    let of_workers = match now.is_heard {
        true => format!(
            "{} workers, {} quiet, {} silent",
            count(State::Open),
            count(State::Quiet) + count(State::Stopping),
            count(State::Silent)
        ),
        false => "workers unknown".to_owned(),
    };
    let of_queues = match now.point.as_ref().filter(|_| now.queue_problem.is_none()) {
        Some(Point { sample, .. }) => {
            format!("{} dead letters   {} unroutable", grouped(sample.dead), grouped(sample.unroutable))
        }
        None => "dead letters unknown   unroutable unknown".to_owned(),
    };
    let of_producers = match now.is_heard {
        true => format!("{} gateways, {} bridges", now.gateways.len(), now.bridges.len()),
        false => "gateways and bridges unknown".to_owned(),
    };
    let text = format!("{} at {}   {of_workers}   {of_queues}   {of_producers}", now.prefix, now.broker);
    let first = Line::styled(text, Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Paragraph::new(vec![first, Line::from(groups_line(now) + &paused_line(now))]), area);
}

/// The groups whose tasks workers hold, largest first.
fn groups_line(now: &Now) -> String {
    let mut groups: Vec<_> = groups(&now.workers).into_iter().collect();
    groups.sort_by_key(|(_, group)| Reverse(group.running + group.queued));
    let group = |(name, group): &(String, GroupTotals)| {
        let paused = if group.paused > 0 { " paused" } else { "" };
        let (running, queued) = (grouped(group.running as u64), grouped(group.queued as u64));
        format!("{} {running} +{queued}{paused}", shown(name))
    };
    match groups.is_empty() {
        true => String::new(),
        false => format!("groups: {}", groups.iter().map(group).collect::<Vec<_>>().join(", ")),
    }
}

/// The lanes and kinds that workers have paused.
fn paused_line(now: &Now) -> String {
    let pauses = Pauses::of(&now.workers);
    let paused: Vec<_> = pauses.all().map(|(noun, name, _)| format!("{noun} {}", shown(name))).collect();
    if paused.is_empty() { String::new() } else { format!("   paused: {}", paused.join(", ")) }
}

fn draw_lanes(frame: &mut Frame<'_>, area: Rect, now: &Now) {
    let unless = |missing: bool, text: String| if missing { UNKNOWN.to_owned() } else { text };
    let row = |(name, lane): (&String, &LaneSample)| {
        let no_queues = now.queue_problem.is_some();
        let no_load = no_queues || lane.problem.is_some();
        let no_workers = !now.is_heard || lane.problem.is_some();
        // These figures need the queues and the workers.
        let no_figures = no_queues || no_workers;
        let backlog = match lane.load.backlog_seconds {
            _ if no_figures => UNKNOWN.to_owned(),
            _ if lane.load.paused => "paused".to_owned(),
            Some(seconds) if seconds.is_infinite() => "no workers".to_owned(),
            Some(0.0) => "-".to_owned(),
            known => seconds(known),
        };
        let cells = [
            shown(name),
            unless(no_load, grouped(lane.ready)),
            unless(no_figures, grouped(lane.unacked)),
            unless(no_queues, grouped(lane.retrying)),
            unless(no_figures, rate(lane.load.arrival_rate)),
            unless(no_figures, rate(lane.removal_rate)),
            seconds(lane.load.service_seconds),
            unless(no_workers, format!("{}/{}", lane.load.running, lane.slots)),
            backlog,
        ];
        let unserved = !no_figures && lane.slots == 0 && lane.load.backlog > 0;
        Row::new(cells.map(Cell::from)).style(if unserved { Color::Red } else { Color::Reset })
    };
    let rows = now.point.iter().flat_map(|point| point.sample.lanes.iter().map(row));
    let queue = ["lane", "ready", "unacked", "retrying"];
    let work = ["arrivals/s", "done/s", "service time", "busy/slots", "backlog"];
    let columns = queue.into_iter().chain(work).map(|name| (name, Constraint::Fill(1)));
    draw_table(frame, area, columns, rows);
}

fn draw_kinds(frame: &mut Frame<'_>, area: Rect, now: &Now) {
    let mut kinds: Vec<_> = now.point.iter().flat_map(|point| &point.kinds).collect();
    let load = |kind: &KindPoint| kind.done_rate + kind.failed_rate;
    kinds.sort_by(|a, b| load(b.1).total_cmp(&load(a.1)).then(a.0.cmp(b.0)));
    let row = |(name, kind): (&String, &KindPoint)| {
        let cells = [
            shown(name),
            rate(kind.done_rate),
            rate(kind.failed_rate),
            seconds(kind.p50),
            seconds(kind.p95),
            seconds(kind.p99),
            grouped(kind.dead),
        ];
        let bad = kind.failed_rate > 0.0 || kind.dead > 0;
        Row::new(cells.map(Cell::from)).style(if bad { Color::Yellow } else { Color::Reset })
    };
    let figures =
        ["done/s", "failed/s", "p50", "p95", "p99", "dead/min"].map(|name| (name, Constraint::Fill(1)));
    let columns = [("kind", Constraint::Fill(2))].into_iter().chain(figures);
    draw_table(frame, area, columns, kinds.into_iter().take(MAX_KINDS).map(row));
}

#[cfg(test)]
mod tests {
    use garenne_protocol::heartbeat::Heartbeat;
    use ratatui::{
        Terminal,
        backend::TestBackend,
        crossterm::event::{KeyEvent, KeyModifiers},
    };

    use super::*;
    use crate::{
        diagnose::{Code, Problem},
        fleet::Process,
        monitor::Sample,
        scale::Load,
    };

    fn worker(id: &str, state: State, task: &str) -> MemberView {
        let beat: Heartbeat = serde_json::from_value(serde_json::json!({
            "program": "worker", "id": id, "incarnation": id, "started_at": 0, "at": 0,
            "every_ms": 1000, "stance": "open", "running": 1,
            "lanes": {"fast": {"slots": 4, "busy": 1, "queued": 46}},
            "groups": {"import-7": {"running": 1, "queued": 2}},
            "tasks": [{"id": task, "kind": "bench.deaf", "lane": "fast", "seconds": 372.0, "progress": 0.25}],
        }))
        .unwrap();
        let (process, earlier) = (Process::Heard(beat.into()), Vec::new());
        MemberView { state, heard_ms_ago: Some(72), clock_ahead_ms: 0, process, earlier }
    }

    fn now() -> Now {
        let load = Load {
            arrival_rate: 76.2,
            backlog: 421,
            running: 8,
            service_seconds: Some(0.086),
            backlog_seconds: Some(4.5),
            ..Load::default()
        };
        let lane = LaneSample { ready: 1_271, unacked: 150, load, slots: 8, ..LaneSample::default() };
        let kind = KindPoint {
            done_rate: 20.3,
            dead: 2,
            p50: Some(0.000_08),
            p95: Some(1.2),
            ..KindPoint::default()
        };
        let lanes = [("fast".to_owned(), lane)].into();
        let point = Point {
            sample: Sample { lanes, dead: 3, ..Sample::default() },
            kinds: [("bench.sleep".to_owned(), kind)].into(),
        };
        Now {
            at: 0,
            broker: "broker:5672".into(),
            prefix: "garenne".into(),
            problems: Vec::new(),
            verdict: "no problems".into(),
            has_looked: true,
            is_heard: true,
            queue_problem: None,
            fleet_problem: None,
            queues: None,
            dead_rate: None,
            point: Some(point),
            workers: vec![worker("frozen", State::Silent, "t-1"), worker("greenhouse-1", State::Open, "t-1")],
            gateways: Vec::new(),
            bridges: Vec::new(),
        }
    }

    fn lines(screen: &mut Screen, now: &Now) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(130, 16)).unwrap();
        terminal.draw(|frame| screen.draw(frame, now)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row: u16| (0..130).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..16).map(|row| line(row).split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn lanes_kinds_and_workers_are_drawn() {
        let lines = lines(&mut Screen::default(), &now());
        assert_eq!(
            lines[0],
            "garenne at broker:5672 1 workers, 0 quiet, 1 silent 3 dead letters 0 unroutable 0 gateways, 0 bridges"
        );
        let has = |text: &str| lines.iter().any(|line| line == text);
        assert!(has("fast 1,271 150 0 76.2 0.0 86ms 8/8 4.5s"), "{lines:#?}");
        assert!(has("bench.sleep 20.3 0.0 80µs 1.2s - 2"), "{lines:#?}");
        assert_eq!(lines[1], "groups: import-7 2 +4");
        assert!(has("frozen silent fast 1/4 +46 72ms ago"), "{lines:#?}");
        assert!(has("greenhouse-1 open fast 1/4 +46 72ms ago"), "{lines:#?}");
        assert!(has("6m bench.deaf 25% t-1"), "{lines:#?}");
    }

    #[test]
    fn a_pause_is_drawn_in_the_title_and_instead_of_the_backlog() {
        let mut now = now();
        now.point.as_mut().unwrap().sample.lanes.get_mut("fast").unwrap().load.paused = true;
        let Process::Heard(beat) = &now.workers[1].process else { panic!("it was heard") };
        let mut beat = Heartbeat::clone(beat);
        beat.lanes.get_mut("fast").unwrap().paused = true;
        beat.paused_kinds = vec!["bench.deaf".into()];
        now.workers[1].process = Process::Heard(beat.into());
        let lines = lines(&mut Screen::default(), &now);
        assert_eq!(lines[1], "groups: import-7 2 +4 paused: lane fast, kind bench.deaf");
        let has = |text: &str| lines.iter().any(|line| line == text);
        assert!(has("fast 1,271 150 0 76.2 0.0 86ms 8/8 paused"), "{lines:#?}");
    }

    #[test]
    fn what_is_not_known_is_drawn_as_unknown() {
        let deaf = Now { is_heard: false, ..now() };
        let drawn = lines(&mut Screen::default(), &deaf);
        assert_eq!(
            drawn[0],
            "garenne at broker:5672 workers unknown 3 dead letters 0 unroutable gateways and bridges unknown"
        );
        assert!(
            drawn.iter().any(|line| line == "fast 1,271 unknown 0 unknown unknown 86ms unknown unknown"),
            "{drawn:#?}"
        );
        let away = Now { queue_problem: Some("no broker".into()), ..deaf };
        let drawn = lines(&mut Screen::default(), &away);
        assert!(drawn[0].contains("dead letters unknown unroutable unknown"), "{drawn:#?}");
        let unknown = ["unknown"; 5].join(" ");
        let fast = format!("fast {unknown} 86ms unknown unknown");
        assert!(drawn.contains(&fast), "{drawn:#?}");
        let starting = Now { point: None, has_looked: false, verdict: "not known yet".into(), ..away };
        let drawn = lines(&mut Screen::default(), &starting);
        assert_eq!(drawn[2], "not known yet");
        assert!(!drawn.iter().any(|line| line.contains(" 0 ")), "{drawn:#?}");
    }

    #[test]
    fn ids_are_drawn_whole_on_a_narrow_screen() {
        let mut now = now();
        let id = "0".repeat(36) + &"1".repeat(90);
        now.workers = vec![worker(&id, State::Open, &id.replace('0', "2"))];
        let mut terminal = Terminal::new(TestBackend::new(80, 30)).unwrap();
        terminal.draw(|frame| Screen::default().draw(frame, &now)).unwrap();
        let cells = terminal.backend().buffer().content().iter().map(|cell| cell.symbol());
        let drawn: String = cells.collect::<String>().replace(' ', "");
        assert!(drawn.contains(&id) && drawn.contains(&id.replace('0', "2")), "{drawn}");
    }

    #[test]
    fn scrolling_stops_at_the_last_worker() {
        let mut screen = Screen::default();
        let down = Event::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
        (0..5).for_each(|_| screen.handle(&down));
        let shown = lines(&mut screen, &now());
        assert!(!shown.iter().any(|line| line.starts_with("frozen")), "{shown:#?}");
        assert!(shown.iter().any(|line| line.starts_with("greenhouse-1")), "{shown:#?}");
        screen.handle(&Event::Key(KeyEvent::new(KeyCode::Home, KeyModifiers::NONE)));
        assert!(lines(&mut screen, &now()).iter().any(|line| line.starts_with("frozen")));
    }

    #[test]
    fn the_worst_problems_are_shown_below_the_title() {
        let problems = vec![
            Problem {
                problem: Code::LaneStalled,
                severity: Severity::Critical,
                subject: "lane fast".into(),
                since: Some(-90_000),
                detail: "nothing ends".into(),
                next: "stop it".into(),
            };
            2
        ];
        let now = Now { verdict: "2 critical problems".into(), problems, ..now() };
        let lines = lines(&mut Screen::default(), &now);
        assert_eq!(lines[2], "2 critical problems: stop it");
        assert!(
            lines[3..5].iter().all(|line| line == "critical lane fast: nothing ends (for 90s)"),
            "{lines:#?}"
        );
    }

    #[test]
    fn foreign_text_is_drawn_escaped() {
        let mut now = now();
        now.workers[0] = worker("frozen", State::Silent, "a\u{1b}[2J\u{202e}b");
        let lines = lines(&mut Screen::default(), &now);
        assert!(
            lines.iter().any(|line| line.contains(r"6m bench.deaf 25% a\u{1b}[2J\u{202e}b")),
            "{lines:#?}"
        );
    }
}
