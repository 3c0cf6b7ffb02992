//! The fleet as the dashboard and `garenne top` show it: the current state, and one point per sample for the
//! charts.

use std::collections::BTreeMap;

use garenne_protocol::heartbeat::{GatewayBeat, Heartbeat, LaneBeat, Program, TaskBeat};
use serde::Serialize;

use super::{history::SampleHistory, sample::Sample, state::MonitorState};
use crate::{
    fleet::{KindTotals, State, quantile},
    operator::Operator,
    queues::Snapshot,
};

/// Window of the kinds' rates and percentiles, milliseconds.
const WINDOW: i64 = 60_000;
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
    /// Why there is no current snapshot of the queues.
    pub queue_problem: Option<String>,
    /// Why no heartbeats arrive.
    pub fleet_problem: Option<String>,
    /// The queues.
    pub queues: Option<Snapshot>,
    /// The newest point.
    pub point: Option<Point>,
    /// The workers, silent ones first.
    pub workers: Vec<WorkerNow>,
    /// The gateways.
    pub gateways: Vec<GatewayNow>,
}

/// One worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerNow {
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: State,
    /// Time since its last heartbeat, milliseconds.
    pub heard_ms_ago: Option<u64>,
    /// Its host.
    pub host: String,
    /// Its version.
    pub version: String,
    /// When it started, milliseconds since 1970.
    pub started_at: i64,
    /// Its lanes.
    pub lanes: BTreeMap<String, LaneBeat>,
    /// Number of running tasks, including those that `tasks` leaves out.
    pub running: usize,
    /// Paused groups.
    pub paused: Vec<String>,
    /// The longest running tasks.
    pub tasks: Vec<TaskBeat>,
    /// Reconnects since its start.
    pub reconnects: u64,
    /// Whether the broker blocks its publishing connection.
    pub blocked: bool,
}

/// One gateway.
#[derive(Clone, Debug, Serialize)]
pub struct GatewayNow {
    /// Host and port.
    pub id: String,
    /// Its state.
    pub state: State,
    /// Time since its last heartbeat, milliseconds.
    pub heard_ms_ago: Option<u64>,
    /// Its version.
    pub version: String,
    /// Its connections and requests.
    #[serde(flatten)]
    pub gateway: GatewayBeat,
}

/// One point of the charts.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The gauges.
    #[serde(flatten)]
    pub sample: Sample,
    /// The kinds.
    pub kinds: BTreeMap<String, KindPoint>,
    /// Responses of the gateways per second, by status.
    pub answers: BTreeMap<String, f64>,
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
        (
            name.clone(),
            kind_point(kind, Some(then.totals.kinds.get(name).unwrap_or(&KindTotals::default())), seconds),
        )
    };
    let answered = |(status, count): (&String, &u64)| {
        let before = then.totals.requests.get(status).copied().unwrap_or(0);
        (status.clone(), rounded(count.saturating_sub(before) as f64 / seconds))
    };
    Point {
        kinds: kinds.iter().map(kind).collect(),
        answers: sample.totals.requests.iter().map(answered).collect(),
        sample: sample.clone(),
    }
}

impl Now {
    pub(super) fn of(operator: &Operator, state: &MonitorState, at: i64) -> Self {
        let mut workers: Vec<_> = state
            .roster
            .members(Program::Worker, at)
            .map(|member| {
                let beat = member.heartbeat;
                let text = |of: fn(&Heartbeat) -> &String| beat.map(of).cloned().unwrap_or_default();
                WorkerNow {
                    id: member.id.to_owned(),
                    state: member.state,
                    heard_ms_ago: member.heard_ms_ago,
                    host: text(|beat| &beat.host),
                    version: text(|beat| &beat.version),
                    started_at: beat.map_or(0, |beat| beat.started_at),
                    lanes: beat.map(|beat| beat.lanes.clone()).unwrap_or_default(),
                    running: beat.map_or(0, |beat| beat.running),
                    paused: beat.map_or_else(Vec::new, |beat| beat.paused.clone()),
                    tasks: beat.iter().flat_map(|beat| beat.tasks.iter().take(MAX_TASKS)).cloned().collect(),
                    reconnects: beat.map_or(0, |beat| beat.connections.values().map(|it| it.epoch).sum()),
                    blocked: beat.is_some_and(|beat| beat.blocked),
                }
            })
            .collect();
        workers.sort_by(|a, b| (a.state, &a.id).cmp(&(b.state, &b.id)));
        let gateways = state.roster.members(Program::Gateway, at).map(|member| GatewayNow {
            id: member.id.to_owned(),
            state: member.state,
            heard_ms_ago: member.heard_ms_ago,
            version: member.heartbeat.map(|beat| beat.version.clone()).unwrap_or_default(),
            gateway: member.heartbeat.and_then(|beat| beat.gateway.clone()).unwrap_or_default(),
        });
        Self {
            at,
            broker: operator.broker.address(),
            prefix: operator.settings.common.prefix.clone(),
            queue_problem: state.queue_problem.clone(),
            fleet_problem: state.fleet_problem.clone(),
            queues: state.snapshot.clone(),
            point: state.history.newest().map(|sample| point(&state.history, sample)),
            workers,
            gateways: gateways.collect(),
        }
    }
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
