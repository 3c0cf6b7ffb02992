//! The fields that the heartbeats of every program share.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use garenne_protocol::{
    heartbeat::{Heartbeat, KindBeat, Program, RecentBeat, Stance},
    task::epoch_ms,
};

use super::Metrics;
use crate::{clock, config::host_name, lock::lock};

/// Makes the heartbeats of a process. The program adds what only it has.
#[derive(Debug, Clone)]
pub struct HeartbeatSource {
    program: Program,
    id: String,
    incarnation: String,
    started: SystemTime,
    interval: Duration,
    metrics: Metrics,
    earlier: Arc<Mutex<EarlierCounts>>,
}

/// What was counted of each kind at earlier times, so that a heartbeat tells what was counted within the last minutes.
#[derive(Debug, Default)]
struct EarlierCounts(VecDeque<(i64, BTreeMap<String, RecentBeat>)>);

impl EarlierCounts {
    /// Time between two of them, in milliseconds: a heartbeat tells at most so much more than its windows.
    const INTERVAL_MS: i64 = 10_000;

    /// Sets the recent counters of the kinds, whose counters since the start are those of now.
    fn set_recent(&mut self, kinds: &mut BTreeMap<String, KindBeat>, now: i64) {
        let all = |kind: &KindBeat| RecentBeat {
            ended: kind.ended(),
            seconds: kind.seconds,
            dead: kind.dead_letters(),
            ..RecentBeat::default()
        };
        if self.0.back().is_none_or(|(at, _)| at + Self::INTERVAL_MS <= now) {
            self.0.push_back((now, kinds.iter().map(|(name, kind)| (name.clone(), all(kind))).collect()));
        }
        while self.0.get(1).is_some_and(|(at, _)| *at <= now - RecentBeat::WINDOW_MS) {
            self.0.pop_front();
        }
        // A process that started within a window has counted all of it there.
        let before = |window: i64, name: &str| {
            let counted = self.0.iter().rev().find(|(at, _)| *at <= now - window);
            counted.and_then(|(_, kinds)| kinds.get(name)).copied().unwrap_or_default()
        };
        for (name, kind) in kinds {
            let now = all(kind);
            let (first, latest) = (before(RecentBeat::WINDOW_MS, name), before(RecentBeat::LATEST_MS, name));
            kind.recent = RecentBeat {
                ended: now.ended.saturating_sub(first.ended),
                seconds: (now.seconds - first.seconds).max(0.0),
                latest_ended: now.ended.saturating_sub(latest.ended),
                latest_seconds: (now.seconds - latest.seconds).max(0.0),
                dead: now.dead.saturating_sub(first.dead),
            };
        }
    }
}

impl HeartbeatSource {
    /// A process that starts now. `incarnation` identifies this run of it, and `interval` is that of its heartbeats.
    pub fn new(
        program: Program,
        id: String,
        incarnation: String,
        interval: Duration,
        metrics: Metrics,
    ) -> Self {
        let (id, started, earlier) = (Heartbeat::fitting_id(id), clock::now(), Arc::default());
        Self { program, id, incarnation, started, interval, metrics, earlier }
    }

    /// The interval of the heartbeats.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The current heartbeat.
    pub fn heartbeat(&self, stance: Stance) -> Heartbeat {
        let (now, mut kinds) = (epoch_ms(clock::now()), self.metrics.kind_counts());
        lock(&self.earlier).set_recent(&mut kinds, now);
        Heartbeat {
            program: self.program,
            id: self.id.clone(),
            incarnation: self.incarnation.clone(),
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: epoch_ms(self.started),
            at: now,
            every_ms: self.interval.as_millis().try_into().unwrap_or(u64::MAX),
            stance,
            lanes: Default::default(),
            paused: Vec::new(),
            paused_kinds: Vec::new(),
            unhandled: Vec::new(),
            not_ready: Default::default(),
            groups: Default::default(),
            running: 0,
            tasks: Vec::new(),
            kinds,
            connections: self.metrics.connection_counts(),
            blocked: self.metrics.connection().blocked.get() != 0,
            denied: None,
            sinks: Default::default(),
            gateway: None,
            bridge: None,
            spool: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_counters_are_those_of_the_last_minutes() {
        let mut earlier = EarlierCounts::default();
        let mut recent = |minute: i64, ended: u64, dead: u64| {
            let kind = KindBeat {
                outcomes: [("success".to_owned(), ended)].into(),
                dead: [("invalid-payload".to_owned(), dead)].into(),
                seconds: ended as f64 / 2.0,
                ..KindBeat::default()
            };
            let mut kinds = BTreeMap::from([("k".to_owned(), kind)]);
            earlier.set_recent(&mut kinds, minute * 60_000);
            kinds["k"].recent
        };
        let counted = |ended, latest_ended, dead| {
            let halves = |count| count as f64 / 2.0;
            let (seconds, latest_seconds) = (halves(ended), halves(latest_ended));
            RecentBeat { ended, seconds, latest_ended, latest_seconds, dead }
        };
        assert_eq!(recent(0, 10, 0), counted(10, 10, 0), "it started a moment ago");
        assert_eq!(recent(4, 30, 2), counted(30, 20, 2));
        assert_eq!(recent(5, 31, 2), counted(21, 1, 2), "without the first ten");
        assert_eq!(recent(9, 31, 2), counted(1, 0, 0));
        assert_eq!(recent(30, 31, 2), counted(0, 0, 0));
    }
}
