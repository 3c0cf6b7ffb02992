//! Bounds how often a log message is written that senders can cause.

use std::{collections::HashMap, hash::Hash, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::lock::lock;

/// Most lines per reason in one [`INTERVAL`].
const MAX_LINES: u64 = 10;
const INTERVAL: Duration = Duration::from_secs(1);

/// Lets ten lines per reason and second through and counts the others. The number of reasons must be bounded.
#[derive(Debug)]
pub struct LogLimit<K>(Mutex<HashMap<K, Interval>>);

/// The lines of a reason since `started`.
#[derive(Debug)]
struct Interval {
    started: Instant,
    lines: u64,
    suppressed: u64,
}

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> LogLimit<K> {
    /// Whether there is room for a line of this reason. `report` is called with the number of lines that were left out of
    /// the previous interval, if there were any.
    pub fn takes(&self, reason: K, report: impl FnOnce(u64)) -> bool {
        let now = Instant::now();
        let new = || Interval { started: now, lines: 0, suppressed: 0 };
        let mut intervals = lock(&self.0);
        let interval = intervals.entry(reason).or_insert_with(new);
        let mut left_out = 0;
        if now.duration_since(interval.started) >= INTERVAL {
            left_out = std::mem::replace(interval, new()).suppressed;
        }
        let takes = interval.lines < MAX_LINES;
        let count = if takes { &mut interval.lines } else { &mut interval.suppressed };
        *count += 1;
        drop(intervals);
        if left_out > 0 {
            report(left_out);
        }
        takes
    }

    /// Calls `report` with the number of lines that were left out of each interval that has ended.
    pub fn report(&self, mut report: impl FnMut(K, u64)) {
        lock(&self.0).retain(|reason, interval| {
            let is_over = interval.started.elapsed() >= INTERVAL;
            if is_over && interval.suppressed > 0 {
                report(*reason, interval.suppressed);
            }
            !is_over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_are_limited_for_each_reason_and_the_rest_is_counted() {
        let limit = LogLimit::default();
        let lines = |reason: &'static str, count: u32| {
            let mut left_out = 0;
            ((0..count).filter(|_| limit.takes(reason, |count| left_out += count)).count(), left_out)
        };
        let reported = || {
            let mut total = 0;
            limit.report(|_, suppressed| total += suppressed);
            total
        };
        assert_eq!((lines("unauthorized", 1000), lines("busy", 3)), ((10, 0), (3, 0)));
        assert_eq!(reported(), 0, "the second has not ended");
        tokio::time::advance(INTERVAL).await;
        assert_eq!(reported(), 990);
        assert_eq!((reported(), lines("unauthorized", 11)), (0, (10, 0)));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(lines("unauthorized", 1), (1, 1), "a new second, also without a report");
    }
}
