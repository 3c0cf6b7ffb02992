//! The consumption of a counter within a time.

use std::collections::VecDeque;

use garenne_protocol::sensor::{Count, Counter};

use crate::alarm::condition::{Micros, Point};

/// Shares of time in `within`.
const SHARES: Micros = 100;

/// Sums the steps of a counter over the newest hundred shares of time.
///
/// Time is divided into hundredths of `within`, counted from the epoch, so that the state has a fixed size, whatever the
/// number of readings. The sum is that of the current share and the 99 before it.
#[derive(Clone, Debug)]
pub(in crate::alarm) struct Usage {
    counter: Counter,
    width: Micros,
    newest: Option<Point>,
    /// Those with readings, oldest first.
    shares: VecDeque<Share>,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    number: Micros,
    sum: f64,
    /// The time of the reading before the first of this share, or the earliest time if there is none.
    base: Micros,
}

impl Usage {
    pub(in crate::alarm) fn new(counter: Counter, within: Micros) -> Self {
        Self { counter, width: (within / SHARES).max(1), newest: None, shares: VecDeque::new() }
    }

    /// The begin of the first share that a reading at `at` is judged with.
    pub(in crate::alarm) fn begin(&self, at: Micros) -> Micros {
        (at.div_euclid(self.width) - (SHARES - 1)).saturating_mul(self.width)
    }

    /// Adds the next reading. Returns the consumption.
    pub(in crate::alarm) fn advance(&mut self, point: Point) -> f64 {
        let number = point.at.div_euclid(self.width);
        while self.shares.pop_front_if(|share| share.number <= number - SHARES).is_some() {}
        // Before a change, the first reading may have followed another one.
        let (step, base) = match (self.newest.replace(point), point.zero) {
            (Some(base), _) => (self.counter.step(base.count(), point.count()), base.at),
            (None, Some(zero)) => {
                let base = Count { at: zero, value: 0.0, start: None };
                (self.counter.step(base, Count { start: None, ..point.count() }), Micros::MIN)
            }
            (None, None) => (0.0, Micros::MIN),
        };
        match self.shares.back_mut() {
            Some(share) if share.number == number => share.sum += step,
            _ => self.shares.push_back(Share { number, sum: step, base }),
        }
        self.shares.iter().map(|share| share.sum).sum()
    }

    /// Whether a reading that changed at this time is part of no further sum, before or after the change.
    pub(super) fn is_after(&self, changed: Micros) -> bool {
        self.shares.front().is_some_and(|oldest| changed < oldest.base)
    }
}
