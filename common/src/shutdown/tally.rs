//! The running count behind a receipt.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{Mode, Receipt};

/// The one end a delivery can come to. The names are the receipt's fields, so that receipt and
/// metrics can be compared by eye.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Settlement {
    /// Success, acknowledged.
    Acked,
    /// Handed back without spending an attempt.
    Requeued,
    /// Copied to the retry ladder, then acknowledged.
    Retried,
    /// Copied to the dead-letter queue, then acknowledged.
    Dead,
    /// Copied to the quarantine, then acknowledged.
    Quarantined,
    /// The connection died before the answer; the broker redelivers.
    LostSettlement,
    /// Left running when the process ended; the broker redelivers.
    Abandoned,
}

impl Settlement {
    /// All settlements, in the receipt's order.
    pub const ALL: [Settlement; 7] = [
        Settlement::Acked,
        Settlement::Requeued,
        Settlement::Retried,
        Settlement::Dead,
        Settlement::Quarantined,
        Settlement::LostSettlement,
        Settlement::Abandoned,
    ];

    /// The receipt's field name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Settlement::Acked => "acked",
            Settlement::Requeued => "requeued",
            Settlement::Retried => "retried",
            Settlement::Dead => "dead",
            Settlement::Quarantined => "quarantined",
            Settlement::LostSettlement => "lost_settlements",
            Settlement::Abandoned => "abandoned",
        }
    }
}

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

    /// `count` deliveries that were counted as `from` came to the end `to` instead: what seemed settled was not.
    pub fn correct(&self, from: Settlement, to: Settlement, count: u64) {
        self.settlements[to as usize].fetch_add(count, Relaxed);
        self.settlements[from as usize].fetch_sub(count, Relaxed);
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
        let settled: u64 = Settlement::ALL.into_iter().map(|settlement| self.count(settlement)).sum();
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
            quarantined: self.count(Settlement::Quarantined),
            lost_settlements: self.count(Settlement::LostSettlement),
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
    fn each_settlement_lands_in_the_field_of_its_name() {
        let tally = Tally::new();
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
    fn a_correction_moves_deliveries_from_one_end_to_another() {
        let tally = Tally::new();
        (0..5).for_each(|_| tally.delivered());
        tally.settled_many(Settlement::Requeued, 5);
        tally.correct(Settlement::Requeued, Settlement::LostSettlement, 3);
        assert_eq!((tally.count(Settlement::Requeued), tally.count(Settlement::LostSettlement)), (2, 3));
        assert!(tally.receipt("w", Mode::Soft, false, Duration::ZERO).balances());
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
