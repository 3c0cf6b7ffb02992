//! Counters of the whole fleet: the sum of the differences between successive heartbeats of each process, so
//! that processes may start, stop and restart.

use std::collections::BTreeMap;

use garenne_common::telemetry::metrics::DURATIONS;
use garenne_protocol::heartbeat::{Heartbeat, KindBeat};
use serde::Serialize;

/// Limit on names per table, so that foreign heartbeats cannot exhaust the memory.
const MAX_NAMES: usize = 100;

/// A task hangs if it runs for this many times the usual duration, and for [`MIN_HUNG`] seconds.
const HUNG_FACTOR: f64 = 10.0;
/// No task hangs before that, in seconds.
pub const MIN_HUNG: f64 = 60.0;

/// Counters since the console started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// By kind.
    pub kinds: BTreeMap<String, KindTotals>,
    /// Deliveries removed from the queue by lane: done, or copied to their next queue.
    pub removed: BTreeMap<String, u64>,
}

/// One kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindTotals {
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that ended otherwise.
    pub failed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Time in attempts, seconds.
    pub seconds: f64,
    /// Attempts by duration, as [`KindBeat::buckets`].
    pub buckets: Vec<u64>,
}

impl Totals {
    /// Adds the difference between two heartbeats of one incarnation; without an earlier one, all of `new`.
    pub(super) fn add(&mut self, old: Option<&Heartbeat>, new: &Heartbeat) {
        for (kind, now) in &new.kinds {
            let Some(total) = entry(&mut self.kinds, kind) else { continue };
            let before = old.and_then(|old| old.kinds.get(kind)).map(KindTotals::of);
            total.add(&KindTotals::of(now).since(before.as_ref()));
        }
        for (lane, now) in &new.lanes {
            let Some(total) = entry(&mut self.removed, lane) else { continue };
            let before = old.and_then(|old| old.lanes.get(lane)).map_or(0, |lane| lane.removed);
            *total = total.saturating_add(now.removed.saturating_sub(before));
        }
    }
}

impl KindTotals {
    /// The counters of one process.
    fn of(beat: &KindBeat) -> Self {
        Self {
            done: beat.done(),
            failed: beat.ended().saturating_sub(beat.done()),
            dead: beat.dead_letters(),
            seconds: beat.seconds,
            buckets: beat.buckets.iter().copied().take(DURATIONS.len() + 1).collect(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.done = self.done.saturating_add(other.done);
        self.failed = self.failed.saturating_add(other.failed);
        self.dead = self.dead.saturating_add(other.dead);
        self.seconds += other.seconds;
        add_buckets(&mut self.buckets, &other.buckets);
    }

    /// Attempts that ended.
    pub fn ended(&self) -> u64 {
        self.done.saturating_add(self.failed)
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self.clone() };
        let before = |at: usize| earlier.buckets.get(at).copied().unwrap_or(0);
        Self {
            done: self.done.saturating_sub(earlier.done),
            failed: self.failed.saturating_sub(earlier.failed),
            dead: self.dead.saturating_sub(earlier.dead),
            seconds: (self.seconds - earlier.seconds).max(0.0),
            buckets: self.buckets.iter().enumerate().map(|(at, n)| n.saturating_sub(before(at))).collect(),
        }
    }
}

fn entry<'t, T: Default>(totals: &'t mut BTreeMap<String, T>, name: &str) -> Option<&'t mut T> {
    if totals.len() >= MAX_NAMES && !totals.contains_key(name) {
        return None;
    }
    Some(totals.entry(name.to_owned()).or_default())
}

/// Adds the attempts of other buckets.
pub fn add_buckets(sum: &mut Vec<u64>, buckets: &[u64]) {
    sum.resize(sum.len().max(buckets.len()), 0);
    for (sum, count) in sum.iter_mut().zip(buckets) {
        *sum = sum.saturating_add(*count);
    }
}

/// Whether a task that has been running for `age` seconds hangs, if its kind usually takes `usual` seconds: its slot is not
/// expected to serve another task soon.
pub fn hangs(age: f64, usual: f64) -> bool {
    age > MIN_HUNG && is_overdue(age, usual)
}

/// Whether a task that has been running for `age` seconds takes much longer than its kind usually does.
pub fn is_overdue(age: f64, usual: f64) -> bool {
    age > HUNG_FACTOR * usual
}

/// A quantile of durations in seconds, interpolated linearly within a bucket; `None` for empty buckets.
/// Durations beyond the last bound count as that bound.
pub fn quantile(buckets: &[u64], share: f64) -> Option<f64> {
    let all: u64 = buckets.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = share.clamp(0.0, 1.0) * all as f64;
    let mut below = 0.0;
    for (at, &count) in buckets.iter().enumerate() {
        let count = count as f64;
        if count > 0.0 && below + count >= wanted {
            let from = if at == 0 { 0.0 } else { DURATIONS[(at - 1).min(DURATIONS.len() - 1)] };
            let to = DURATIONS.get(at).copied().unwrap_or(from);
            return Some(from + (to - from) * ((wanted - below) / count).clamp(0.0, 1.0));
        }
        below += count;
    }
    DURATIONS.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_within_their_buckets() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[0, 0], 0.5), None);
        assert_eq!(quantile(&[10], 1.0), Some(DURATIONS[0]));
        assert_eq!(quantile(&[10], 0.5), Some(DURATIONS[0] / 2.0));
        let half = quantile(&[5, 0, 5], 0.75).unwrap();
        assert!(half > DURATIONS[1] && half <= DURATIONS[2], "{half}");
        let mut beyond = vec![0; DURATIONS.len() + 1];
        *beyond.last_mut().unwrap() = 3;
        assert_eq!(quantile(&beyond, 0.99), DURATIONS.last().copied());
    }

    #[test]
    fn since_subtracts_the_earlier_counters() {
        let kind =
            |done, buckets: &[u64]| KindTotals { done, buckets: buckets.to_vec(), ..KindTotals::default() };
        let since = kind(7, &[3, 4]).since(Some(&kind(2, &[2])));
        assert_eq!(since, kind(5, &[1, 4]));
        assert_eq!(kind(7, &[7]).since(None), kind(7, &[7]));
    }
}
