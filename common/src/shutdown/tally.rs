//! Counts deliveries and settlements for the receipt.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use garenne_protocol::settlement::Settlement;

use super::{Mode, Receipt};

/// Counts deliveries and their settlements, from any thread.
///
/// The counters are updated independently of each other. They are consistent once the counting threads are done, as
/// they are when a receipt is made.
#[derive(Debug, Default)]
pub struct Tally {
    delivered: AtomicU64,
    settlements: [AtomicU64; Settlement::ALL.len()],
}

impl Tally {
    /// Counts one delivery.
    pub fn delivered(&self) {
        self.delivered.fetch_add(1, Relaxed);
    }

    /// Counts `count` deliveries with the same settlement.
    pub fn settled_many(&self, settlement: Settlement, count: u64) {
        self.settlements[settlement as usize].fetch_add(count, Relaxed);
    }

    /// Moves `count` deliveries that were counted as `from` to `to`, such as acks that turn out to be lost.
    pub fn correct(&self, from: Settlement, to: Settlement, count: u64) {
        self.settlements[to as usize].fetch_add(count, Relaxed);
        self.settlements[from as usize].fetch_sub(count, Relaxed);
    }

    /// Number of deliveries so far.
    pub fn deliveries(&self) -> u64 {
        self.delivered.load(Relaxed)
    }

    /// Number of deliveries with this settlement so far.
    pub fn count(&self, settlement: Settlement) -> u64 {
        self.settlements[settlement as usize].load(Relaxed)
    }

    /// Number of deliveries not settled yet.
    pub fn outstanding(&self) -> u64 {
        // Reads settlements first, so that a concurrent delivery cannot make the difference negative.
        let settled: u64 = Settlement::ALL.into_iter().map(|settlement| self.count(settlement)).sum();
        self.deliveries().saturating_sub(settled)
    }

    /// The receipt of a shutdown that took `took`, rounded to milliseconds.
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
            quarantined: self.count(Settlement::Quarantined),
            lost_settlements: self.count(Settlement::LostSettlement),
            abandoned: self.count(Settlement::Abandoned),
            seconds: (took.as_secs_f64() * 1000.0).round() / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_settlement_is_counted_in_the_field_of_its_name() {
        let tally = Tally::default();
        for (index, settlement) in Settlement::ALL.into_iter().enumerate() {
            let count = 1 << index;
            tally.settled_many(settlement, count);
            (0..count).for_each(|_| tally.delivered());
        }
        let receipt = tally.receipt("w", Mode::Hard, true, Duration::from_micros(1_234_567));
        let json = serde_json::to_value(&receipt).unwrap();
        for (index, settlement) in Settlement::ALL.into_iter().enumerate() {
            assert_eq!(json[settlement.as_str()], 1 << index, "{settlement:?}");
        }
        assert_eq!(json["delivered"], 127);
        assert_eq!(json["seconds"], 1.235);
        assert!(receipt.balances());
    }

    #[test]
    fn a_correction_moves_deliveries_between_settlements() {
        let tally = Tally::default();
        (0..5).for_each(|_| tally.delivered());
        tally.settled_many(Settlement::Requeued, 5);
        tally.correct(Settlement::Requeued, Settlement::LostSettlement, 3);
        assert_eq!((tally.count(Settlement::Requeued), tally.count(Settlement::LostSettlement)), (2, 3));
        assert!(tally.receipt("w", Mode::Soft, false, Duration::ZERO).balances());
    }

    #[test]
    fn outstanding_deliveries_are_those_not_settled() {
        let tally = Tally::default();
        tally.delivered();
        tally.delivered();
        tally.settled_many(Settlement::Acked, 1);
        assert_eq!(tally.outstanding(), 1);
        assert!(!tally.receipt("w", Mode::Soft, false, Duration::ZERO).balances());
    }
}
