//! The fleet as the dashboard and `garenne top` show it: the current state, and one point per sample for the
//! charts.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use garenne_operator::{operator::Operator, queues::Snapshot};
use garenne_protocol::heartbeat::{Heartbeat, Program};
use serde::Serialize;

use super::{history::SampleHistory, sample::Sample, state::MonitorState};
use crate::{
    diagnose::{Problem, verdict},
    fleet::{KindTotals, MemberView, Process, State, quantile},
};

/// Window of the kinds' rates and percentiles, milliseconds.
const WINDOW: i64 = 60_000;
/// The verdict before the first look at the fleet has ended.
pub const NOT_KNOWN: &str = "not known yet";
/// Running tasks shown per worker.
const MAX_TASKS: usize = 6;

/// The current state.
#[derive(Clone, Debug, Serialize)]
pub struct Now {
    /// Time, milliseconds since 1970.
    pub at: i64,
    /// Host and port of the broker.
    pub broker: String,
    /// The fleet's prefix.
    pub prefix: String,
    /// What is wrong, the worst first.
    pub problems: Vec<Problem>,
    /// The same in a few words.
    pub verdict: String,
    /// Whether a first look at the fleet has ended. Nothing is known before.
    pub has_looked: bool,
    /// Whether heartbeats arrive. If not, nothing is known of workers, gateways and bridges.
    pub is_heard: bool,
    /// Why there is no current snapshot of the queues.
    pub queue_problem: Option<String>,
    /// Why no heartbeats arrive.
    pub fleet_problem: Option<String>,
    /// The queues.
    pub queues: Option<Snapshot>,
    /// Dead letters that are added per minute; unknown until two samples are far enough apart.
    pub dead_rate: Option<f64>,
    /// The newest point.
    pub point: Option<Point>,
    /// The workers, silent ones first.
    pub workers: Vec<MemberView>,
    /// The gateways.
    pub gateways: Vec<MemberView>,
    /// The bridges.
    pub bridges: Vec<MemberView>,
}

/// One point of the charts.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The gauges.
    #[serde(flatten)]
    pub sample: Sample,
    /// The kinds.
    pub kinds: BTreeMap<String, KindPoint>,
}

/// One kind over the last minute. Durations in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindPoint {
    /// Attempts that succeeded, per second.
    pub done_rate: f64,
    /// Attempts that failed, per second.
    pub failed_rate: f64,
    /// Dead letters in the minute.
    pub dead: u64,
    /// Median duration.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

fn rounded(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

fn kind_point(now: &KindTotals, then: Option<&KindTotals>, seconds: f64) -> KindPoint {
    let since = now.since(then);
    let at = |share| quantile(&since.buckets, share).map(rounded);
    KindPoint {
        done_rate: rounded(since.done as f64 / seconds),
        failed_rate: rounded(since.failed as f64 / seconds),
        dead: since.dead,
        p50: at(0.5),
        p95: at(0.95),
        p99: at(0.99),
    }
}

fn point(history: &SampleHistory, sample: &Sample) -> Point {
    // The first sample has no rates.
    let then = history.at_or_after(sample.at - WINDOW).filter(|then| then.at < sample.at);
    let seconds = then.map_or(1.0, |then| (sample.at - then.at) as f64 / 1e3);
    let then = then.unwrap_or(sample);
    let kinds = &sample.totals.kinds;
    let kind = |(name, kind): (&String, &KindTotals)| {
        (name.clone(), kind_point(kind, then.totals.kinds.get(name), seconds))
    };
    Point { kinds: kinds.iter().map(kind).collect(), sample: sample.clone() }
}

impl Now {
    pub(super) fn of(operator: &Operator, objective: Duration, state: &mut MonitorState, at: i64) -> Self {
        let problems = state.diagnose(operator, objective, at);
        let is_heard = state.has_looked && state.is_heard(at);
        let members = |program| {
            let members = state.roster.members(program, at).into_iter();
            let shown = members.map(|member| MemberView { process: shortened(member.process), ..member });
            shown.map(|member| if is_heard { member } else { unknown(member) }).collect()
        };
        Self {
            at,
            broker: operator.broker.address(),
            prefix: operator.settings.common.prefix.clone(),
            verdict: if state.has_looked { verdict(&problems) } else { NOT_KNOWN.to_owned() },
            has_looked: state.has_looked,
            is_heard,
            problems,
            queue_problem: state.queue_problem.clone(),
            fleet_problem: state.fleet_problem(at).map(Cow::into_owned),
            queues: state.snapshot.clone(),
            dead_rate: state.history.dead_rate().map(rounded),
            point: state.history.newest().map(|sample| point(&state.history, sample)),
            workers: members(Program::Worker),
            gateways: members(Program::Gateway),
            bridges: members(Program::Bridge),
        }
    }
}

/// Leaves out of a heartbeat what would make the state large: the counters by kind, which the points have for the
/// whole fleet, and most of the tasks.
fn shortened(process: Process) -> Process {
    let Process::Heard(beat) = &process else { return process };
    let tasks = beat.tasks.iter().take(MAX_TASKS).cloned().collect();
    Process::Heard(Arc::new(Heartbeat { kinds: BTreeMap::new(), tasks, ..Heartbeat::clone(beat) }))
}

/// A process of which nothing can be heard: what it did last is not what it does now.
fn unknown(member: MemberView) -> MemberView {
    let process = match member.process {
        Process::Heard(beat) => {
            let groups = BTreeMap::new();
            let (lanes, tasks) = (BTreeMap::new(), Vec::new());
            Process::Heard(Arc::new(Heartbeat {
                lanes,
                tasks,
                groups,
                running: 0,
                ..Heartbeat::clone(&beat)
            }))
        }
        expected @ Process::Expected { .. } => expected,
    };
    let state = if member.state == State::Stopped { State::Stopped } else { State::Unknown };
    MemberView { process, state, ..member }
}

/// One point per sample, oldest first.
pub(super) fn points(history: &SampleHistory) -> Vec<Point> {
    history.iter().map(|sample| point(history, sample)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_last_minute() {
        let mut history = SampleHistory::default();
        for n in 0..30 {
            let mut sample = Sample { at: n * 5_000, ..Sample::default() };
            let done = 10 * n.unsigned_abs();
            let kind = KindTotals { done, buckets: vec![0, done], ..KindTotals::default() };
            sample.totals.kinds.insert("k".into(), kind);
            history.push(sample);
        }
        let newest = point(&history, history.newest().unwrap());
        let kind = &newest.kinds["k"];
        assert_eq!((kind.done_rate, kind.failed_rate, kind.dead), (2.0, 0.0, 0));
        assert!(kind.p50 > Some(0.0001) && kind.p99 <= Some(0.00025), "{kind:?}");
        let first = point(&history, history.iter().next().unwrap());
        assert_eq!(first.kinds["k"], KindPoint::default(), "the first sample has no rates");
    }
}
