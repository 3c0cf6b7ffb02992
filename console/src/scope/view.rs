//! The fleet as the page and the terminal show it: what is now, and one point per sample for the curves.

use garenne_protocol::heartbeat::{GatewayBeat, Heartbeat, LaneBeat, Program, TaskBeat};
use serde::Serialize;
use std::collections::BTreeMap;

use super::{Sample, Scope, now, ring::Ring};
use crate::{
    fleet::{KindTotals, State, quantile},
    status::Snapshot,
};

/// Rates and percentiles of kinds are taken over so many milliseconds.
const WINDOW: i64 = 60_000;
/// Tasks shown of each worker.
const TASKS: usize = 6;

/// What is now.
#[derive(Clone, Debug, Serialize)]
pub struct Now {
    /// When, milliseconds since 1970.
    pub at: i64,
    /// Host and port of the broker.
    pub broker: String,
    /// The fleet's prefix.
    pub prefix: String,
    /// Why the queues cannot be seen.
    pub blind: Option<String>,
    /// Why the workers cannot be heard.
    pub deaf: Option<String>,
    /// The queues.
    pub queues: Option<Snapshot>,
    /// The newest point.
    pub point: Option<Point>,
    /// The workers, those that want attention first.
    pub workers: Vec<WorkerNow>,
    /// The gateways.
    pub gateways: Vec<GatewayNow>,
}

/// One worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerNow {
    /// Its id.
    pub id: String,
    /// How it stands.
    pub state: State,
    /// How long ago it was heard, milliseconds.
    pub heard_ms_ago: Option<u64>,
    /// Its host.
    pub host: String,
    /// Its version.
    pub version: String,
    /// When it started, milliseconds since 1970.
    pub started_at: i64,
    /// Its lanes.
    pub lanes: BTreeMap<String, LaneBeat>,
    /// Running tasks, named or not.
    pub running: usize,
    /// Groups of which it starts nothing.
    pub paused: Vec<String>,
    /// The longest running ones.
    pub tasks: Vec<TaskBeat>,
    /// Connections lost so far.
    pub reconnects: u64,
    /// Whether the broker lets it publish nothing.
    pub blocked: bool,
}

/// One gateway.
#[derive(Clone, Debug, Serialize)]
pub struct GatewayNow {
    /// Host and port.
    pub id: String,
    /// How it stands.
    pub state: State,
    /// How long ago it was heard, milliseconds.
    pub heard_ms_ago: Option<u64>,
    /// Its version.
    pub version: String,
    /// Its senders.
    #[serde(flatten)]
    pub gateway: GatewayBeat,
}

/// One point of the curves.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// When, milliseconds since 1970.
    pub at: i64,
    /// The lanes.
    pub lanes: BTreeMap<String, super::LaneSample>,
    /// The kinds.
    pub kinds: BTreeMap<String, KindPoint>,
    /// Dead letters.
    pub dead: u64,
    /// Quarantined tasks.
    pub quarantine: u64,
    /// What no lane took.
    pub unroutable: u64,
    /// Workers that answer.
    pub workers: u32,
    /// Workers that should and do not.
    pub silent: u32,
    /// Sensors' connections.
    pub connections: i64,
    /// Gateways' answers per second, by status.
    pub answers: BTreeMap<String, f64>,
}

/// One kind over the last minute. Durations in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindPoint {
    /// Attempts that succeeded, per second.
    pub done_rate: f64,
    /// Attempts that ended in another way, per second.
    pub failed_rate: f64,
    /// Dead letters of the minute.
    pub dead: u64,
    /// The duration that half of the attempts did not exceed.
    pub p50: Option<f64>,
    /// 95 of 100.
    pub p95: Option<f64>,
    /// 99 of 100.
    pub p99: Option<f64>,
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e5).round() / 1e5
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

fn point(ring: &Ring, sample: &Sample) -> Point {
    // A first sample has nothing before it, and so no rates.
    let then = ring.at_or_after(sample.at - WINDOW).filter(|then| then.at < sample.at);
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
        at: sample.at,
        lanes: sample.lanes.clone(),
        kinds: kinds.iter().map(kind).collect(),
        dead: sample.dead,
        quarantine: sample.quarantine,
        unroutable: sample.unroutable,
        workers: sample.workers,
        silent: sample.silent,
        connections: sample.connections,
        answers: sample.totals.requests.iter().map(answered).collect(),
    }
}

impl Scope {
    /// What is now.
    pub fn now(&self) -> Now {
        let at = now();
        let known = self.known();
        let mut workers: Vec<_> = known
            .roster
            .members(Program::Worker, at)
            .map(|member| {
                let beat = member.beat;
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
                    tasks: beat.iter().flat_map(|beat| beat.tasks.iter().take(TASKS)).cloned().collect(),
                    reconnects: beat.map_or(0, |beat| beat.connections.values().map(|it| it.epoch).sum()),
                    blocked: beat.is_some_and(|beat| beat.blocked),
                }
            })
            .collect();
        workers.sort_by(|a, b| (a.state, &a.id).cmp(&(b.state, &b.id)));
        let gateways = known.roster.members(Program::Gateway, at).map(|member| GatewayNow {
            id: member.id.to_owned(),
            state: member.state,
            heard_ms_ago: member.heard_ms_ago,
            version: member.beat.map(|beat| beat.version.clone()).unwrap_or_default(),
            gateway: member.beat.and_then(|beat| beat.gateway.clone()).unwrap_or_default(),
        });
        Now {
            at,
            broker: self.operator.broker.address(),
            prefix: self.operator.settings.common.prefix.clone(),
            blind: known.blind.clone(),
            deaf: known.deaf.clone(),
            queues: known.snapshot.clone(),
            point: known.ring.newest().map(|sample| point(&known.ring, sample)),
            workers,
            gateways: gateways.collect(),
        }
    }

    /// The last hour, oldest first.
    pub fn history(&self) -> Vec<Point> {
        let known = self.known();
        known.ring.iter().map(|sample| point(&known.ring, sample)).collect()
    }

    /// Every queue, as last seen.
    pub fn queues(&self) -> Option<BTreeMap<String, crate::status::QueueStatus>> {
        self.known().snapshot.as_ref().map(|snapshot| snapshot.queues.clone())
    }

    /// Messages that no lane took, since this console began and what was there then.
    pub fn unroutable(&self) -> u64 {
        self.known().unroutable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let mut ring = Ring::default();
        for n in 0..30 {
            let mut sample = Sample { at: n * 5_000, ..Sample::default() };
            let done = 10 * n.unsigned_abs();
            let kind = KindTotals { started: done, done, buckets: vec![0, done], ..KindTotals::default() };
            sample.totals.kinds.insert("k".into(), kind);
            ring.push(sample);
        }
        let newest = point(&ring, ring.newest().unwrap());
        let kind = &newest.kinds["k"];
        assert_eq!((kind.done_rate, kind.failed_rate, kind.dead), (2.0, 0.0, 0));
        assert!(kind.p50 > Some(0.0001) && kind.p99 <= Some(0.00025), "{kind:?}");
        let first = point(&ring, ring.iter().next().unwrap());
        assert_eq!(first.kinds["k"], KindPoint::default(), "nothing before it to compare with");
    }
}
