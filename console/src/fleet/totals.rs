//! Counters of the whole fleet: the sum of the differences between successive heartbeats of each process, so
//! that processes may start, stop and restart.

use std::collections::BTreeMap;

use garenne_common::telemetry::metrics::DURATIONS;
use garenne_protocol::heartbeat::{Heartbeat, KindBeat, LaneBeat};
use serde::Serialize;

/// Limit on names per table, so that foreign heartbeats cannot exhaust the memory.
const MAX_NAMES: usize = 100;

/// Counters since the console started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// By kind.
    pub kinds: BTreeMap<String, KindTotals>,
    /// By lane.
    pub lanes: BTreeMap<String, LaneTotals>,
    /// Responses of gateways by status.
    pub requests: BTreeMap<String, u64>,
}

/// One kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindTotals {
    /// Attempts that started.
    pub started: u64,
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

/// One lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneTotals {
    /// Messages delivered.
    pub delivered: u64,
    /// Deliveries removed from the queue: done, or copied to their next queue.
    pub removed: u64,
}

impl Totals {
    /// Adds the difference between two heartbeats of one incarnation; without an earlier one, all of `new`.
    pub(super) fn add(&mut self, old: Option<&Heartbeat>, new: &Heartbeat) {
        let none = KindBeat::default();
        for (kind, now) in &new.kinds {
            let Some(total) = entry(&mut self.kinds, kind) else { continue };
            let before = old.and_then(|old| old.kinds.get(kind)).unwrap_or(&none);
            // A heartbeat reads ended and running attempts separately, so `started` can decrease for a moment.
            total.started += now.started.saturating_sub(before.started);
            total.done += now.done().saturating_sub(before.done());
            let failed = |kind: &KindBeat| kind.ended().saturating_sub(kind.done());
            total.failed += failed(now).saturating_sub(failed(before));
            let dead = |kind: &KindBeat| kind.dead.values().sum::<u64>();
            total.dead += dead(now).saturating_sub(dead(before));
            total.seconds += (now.seconds - before.seconds).max(0.0);
            let buckets = now.buckets.len().min(DURATIONS.len() + 1);
            total.buckets.resize(total.buckets.len().max(buckets), 0);
            for (at, count) in now.buckets.iter().take(buckets).enumerate() {
                total.buckets[at] += count.saturating_sub(before.buckets.get(at).copied().unwrap_or(0));
            }
        }
        let none = LaneBeat::default();
        for (lane, now) in &new.lanes {
            let Some(total) = entry(&mut self.lanes, lane) else { continue };
            let before = old.and_then(|old| old.lanes.get(lane)).unwrap_or(&none);
            total.delivered += now.delivered.saturating_sub(before.delivered);
            total.removed += now.removed.saturating_sub(before.removed);
        }
        for (status, now) in new.gateway.iter().flat_map(|gateway| &gateway.requests) {
            let Some(total) = entry(&mut self.requests, status) else { continue };
            let before = old.and_then(|old| old.gateway.as_ref()?.requests.get(status)).copied();
            *total += now.saturating_sub(before.unwrap_or(0));
        }
    }
}

impl KindTotals {
    /// Attempts that ended.
    pub fn ended(&self) -> u64 {
        self.done + self.failed
    }

    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self.clone() };
        let before = |at: usize| earlier.buckets.get(at).copied().unwrap_or(0);
        Self {
            started: self.started.saturating_sub(earlier.started),
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
        let kind = |done, buckets: &[u64]| KindTotals {
            started: done,
            done,
            buckets: buckets.to_vec(),
            ..KindTotals::default()
        };
        let since = kind(7, &[3, 4]).since(Some(&kind(2, &[2])));
        assert_eq!(since, kind(5, &[1, 4]));
        assert_eq!(kind(7, &[7]).since(None), kind(7, &[7]));
    }
}
