//! The last hour, sample by sample.

use std::collections::{BTreeMap, VecDeque};

use garenne_protocol::heartbeat::Program;
use serde::Serialize;

use super::{EVERY, Known, LaneSample};
use crate::{
    fleet::{State, Totals},
    operator::Operator,
    scale::Load,
    status::Snapshot,
};

/// The fleet at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When, milliseconds since 1970.
    pub at: i64,
    /// The lanes.
    pub lanes: BTreeMap<String, LaneSample>,
    /// What happened until then, since the console began.
    pub totals: Totals,
    /// Dead letters.
    pub dead: u64,
    /// Quarantined tasks.
    pub quarantine: u64,
    /// What no lane took and is still there.
    pub unroutable: u64,
    /// Workers that answer.
    pub workers: u32,
    /// Workers that should and do not.
    pub silent: u32,
    /// Sensors' connections to all gateways.
    pub connections: i64,
}

/// Samples of the last hour, oldest first.
#[derive(Debug, Default)]
pub struct Ring(VecDeque<Sample>);

impl Ring {
    /// What is kept, milliseconds.
    pub const SPAN: i64 = 3_600_000;
    const MOST: usize = (Self::SPAN as u64 / (EVERY.as_secs() * 1000)) as usize + 1;

    /// Adds a sample; the oldest goes.
    pub fn push(&mut self, sample: Sample) {
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// The newest.
    pub fn newest(&self) -> Option<&Sample> {
        self.0.back()
    }

    /// The oldest that is no older than this.
    pub fn at_or_after(&self, at: i64) -> Option<&Sample> {
        self.0.get(self.0.partition_point(|sample| sample.at < at))
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.0.iter()
    }

    /// A lane's loads from a time on, oldest first, and whether samples reach back to it.
    pub fn loads(&self, lane: &str, from: i64) -> (Vec<Load>, bool) {
        let first = self.0.partition_point(|sample| sample.at < from);
        let complete = first > 0 || self.0.front().is_some_and(|sample| sample.at <= from);
        let loads = self.0.range(first..).filter_map(|sample| Some(sample.lanes.get(lane)?.load));
        (loads.collect(), complete)
    }
}

impl Known {
    /// Takes a sample of what is known now.
    pub(super) fn take(&mut self, operator: &Operator, snapshot: Snapshot, now: i64) {
        let came = |now: &Snapshot, then: &Snapshot| {
            let (now, then) = (&now.unroutable, &then.unroutable);
            match (now.published, then.published) {
                (Some(now), Some(then)) => now.saturating_sub(then),
                // The broker counts from the first message on.
                (Some(now), None) => now,
                _ => now.ready.saturating_sub(then.ready),
            }
        };
        self.unroutable += match &self.snapshot {
            Some(then) => came(&snapshot, then),
            None => snapshot.unroutable.ready,
        };
        let lane = |lane| self.lane(operator, lane, now);
        let lanes = snapshot.lanes.iter().map(|status| (status.name.clone(), lane(status))).collect();
        let workers = |wanted: fn(State) -> bool| {
            let members = self.roster.members(Program::Worker, now);
            members.filter(|member| wanted(member.state)).count().try_into().unwrap_or(u32::MAX)
        };
        let gateways = self.roster.members(Program::Gateway, now);
        let connections = gateways
            .filter(|member| member.state == State::Open)
            .filter_map(|member| Some(member.beat?.gateway.as_ref()?.connections.values().sum::<i64>()));
        let sample = Sample {
            at: now,
            lanes,
            totals: self.roster.totals().clone(),
            dead: snapshot.dead.ready + snapshot.dead.unacked.unwrap_or(0),
            quarantine: snapshot.quarantine.ready + snapshot.quarantine.unacked.unwrap_or(0),
            unroutable: snapshot.unroutable.ready,
            workers: workers(|state| !matches!(state, State::Silent | State::Stopped)),
            silent: workers(|state| state == State::Silent),
            connections: connections.sum(),
        };
        self.ring.push(sample);
        self.snapshot = Some(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: i64, backlog: u64) -> Sample {
        let load = Load { backlog, ..Load::default() };
        let lanes = [("fast".to_owned(), LaneSample { load, ..LaneSample::default() })].into();
        Sample { at, lanes, ..Sample::default() }
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut ring = Ring::default();
        for n in 0..2_000 {
            ring.push(sample(n * 5_000, 0));
        }
        assert_eq!(ring.iter().count(), Ring::MOST);
        let (oldest, newest) = (ring.iter().next().unwrap().at, ring.newest().unwrap().at);
        assert_eq!((newest, newest - oldest), (9_995_000, Ring::SPAN));
        assert_eq!(ring.at_or_after(9_990_001).unwrap().at, 9_995_000);
        assert!(ring.at_or_after(9_995_001).is_none());
    }

    #[test]
    fn a_window_is_complete_once_samples_reach_back_to_its_beginning() {
        let mut ring = Ring::default();
        (0..10).for_each(|n| ring.push(sample(1_000 + n * 5_000, n.unsigned_abs())));
        let backlogs = |from| {
            let (loads, complete) = ring.loads("fast", from);
            (loads.iter().map(|load| load.backlog).collect::<Vec<_>>(), complete)
        };
        assert_eq!(backlogs(36_000), (vec![7, 8, 9], true));
        assert!(backlogs(1_000).1);
        assert!(!backlogs(999).1);
        assert_eq!(ring.loads("none", 0).0, []);
    }
}
