//! What happened over the whole fleet: the sum of the differences between each process's beats, so that
//! processes may come, go and start over.

use std::collections::BTreeMap;

use garenne_common::telemetry::metrics::DURATIONS;
use garenne_protocol::heartbeat::{Heartbeat, KindBeat, LaneBeat};
use serde::Serialize;

/// Names that are kept; what comes beyond them is a foreign flood.
const MOST_NAMES: usize = 100;

/// Everything, since a console began to listen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// By kind.
    pub kinds: BTreeMap<String, KindTotals>,
    /// By lane.
    pub lanes: BTreeMap<String, LaneTotals>,
    /// Gateways' answers by status.
    pub requests: BTreeMap<String, u64>,
}

/// One kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindTotals {
    /// Attempts begun.
    pub started: u64,
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that ended in another way.
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
    /// Deliveries taken off the queue: done, or copied to where they go next.
    pub removed: u64,
}

impl Totals {
    /// Adds what happened between two beats of one life; from its beginning without an earlier one.
    pub(super) fn add(&mut self, old: Option<&Heartbeat>, new: &Heartbeat) {
        let none = KindBeat::default();
        for (kind, now) in &new.kinds {
            let Some(total) = place(&mut self.kinds, kind) else { continue };
            let before = old.and_then(|old| old.kinds.get(kind)).unwrap_or(&none);
            // Started tasks are those that ended and those that run: read apart, the sum may step back.
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
            let Some(total) = place(&mut self.lanes, lane) else { continue };
            let before = old.and_then(|old| old.lanes.get(lane)).unwrap_or(&none);
            total.delivered += now.delivered.saturating_sub(before.delivered);
            total.removed += now.removed.saturating_sub(before.removed);
        }
        for (status, now) in new.gateway.iter().flat_map(|gateway| &gateway.requests) {
            let Some(total) = place(&mut self.requests, status) else { continue };
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

    /// What happened since `earlier`.
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

fn place<'t, T: Default>(totals: &'t mut BTreeMap<String, T>, name: &str) -> Option<&'t mut T> {
    if totals.len() >= MOST_NAMES && !totals.contains_key(name) {
        return None;
    }
    Some(totals.entry(name.to_owned()).or_default())
}

/// The duration that a share of attempts did not exceed, seconds, by straight lines within a bucket;
/// none where nothing was counted. What took longer than every bound counts as the last of them.
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
    fn what_happened_since_is_a_difference() {
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
