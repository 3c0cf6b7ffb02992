//! The running count behind a receipt.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{Mode, Receipt};
use crate::task::Settlement;

/// Counts deliveries and their ends from any thread.
///
/// The counts are independent of each other; they are exact once the threads that bump them are
/// done, which is when a receipt is made.
#[derive(Debug, Default)]
pub struct Tally {
    delivered: AtomicU64,
    settlements: [AtomicU64; Settlement::ALL.len()],
}

impl Tally {
    /// A tally of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One message came in.
    pub fn delivered(&self) {
        self.delivered.fetch_add(1, Relaxed);
    }

    /// One delivery came to its end.
    pub fn settled(&self, settlement: Settlement) {
        self.settled_many(settlement, 1);
    }

    /// `count` deliveries came to the same end.
    pub fn settled_many(&self, settlement: Settlement, count: u64) {
        self.settlements[settlement as usize].fetch_add(count, Relaxed);
    }

    /// Messages delivered so far.
    pub fn deliveries(&self) -> u64 {
        self.delivered.load(Relaxed)
    }

    /// Deliveries that came to this end so far.
    pub fn count(&self, settlement: Settlement) -> u64 {
        self.settlements[settlement as usize].load(Relaxed)
    }

    /// Deliveries without an end yet.
    pub fn outstanding(&self) -> u64 {
        // Ends are read first: a delivery that comes in meanwhile must not make the difference negative.
        let settled: u64 = Settlement::ALL.into_iter().map(|one| self.count(one)).sum();
        self.deliveries().saturating_sub(settled)
    }

    /// The receipt of a stop that took `took`.
    pub fn receipt(&self, worker: &str, mode: Mode, escalated: bool, took: Duration) -> Receipt {
        Receipt {
            worker: worker.to_owned(),
            mode,
            escalated,
            delivered: self.deliveries(),
            acked: self.count(Settlement::Acked),
            requeued: self.count(Settlement::Requeued),
            retried: self.count(Settlement::Retried),
            dead: self.count(Settlement::Dead),
            suspected: self.count(Settlement::Suspected),
            lost_settlements: self.count(Settlement::Lost),
            abandoned: self.count(Settlement::Abandoned),
            // Milliseconds are as exact as anything a person compares them with.
            seconds: (took.as_secs_f64() * 1000.0).round() / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_settlement_lands_in_its_own_field() {
        let fields = ["acked", "requeued", "retried", "dead", "suspected", "lost_settlements", "abandoned"];
        let tally = Tally::new();
        for (index, settlement) in Settlement::ALL.into_iter().enumerate() {
            let count = 1 << index;
            tally.settled_many(settlement, count);
            (0..count).for_each(|_| tally.delivered());
        }
        let receipt = tally.receipt("w", Mode::Hard, true, Duration::from_micros(1_234_567));
        let json = serde_json::to_value(&receipt).unwrap();
        for (index, field) in fields.into_iter().enumerate() {
            assert_eq!(json[field], 1 << index, "{field}");
        }
        assert_eq!(json["delivered"], 127);
        assert_eq!(json["seconds"], 1.235);
        assert!(receipt.balances());
    }

    #[test]
    fn outstanding_is_what_has_no_end_yet() {
        let tally = Tally::new();
        tally.delivered();
        tally.delivered();
        tally.settled(Settlement::Acked);
        assert_eq!(tally.outstanding(), 1);
        assert!(!tally.receipt("w", Mode::Soft, false, Duration::ZERO).balances());
    }
}
