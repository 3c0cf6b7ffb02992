//! How long receipts take, without keeping every measurement.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Eight buckets for each doubling: a percentile is off by at most an eighth.
const PER_DOUBLING: u32 = 8;
const BUCKETS: usize = 40 * PER_DOUBLING as usize;

/// Counts durations from a microsecond to days, from any thread.
pub(super) struct Latency(Vec<AtomicU64>);

impl Default for Latency {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Latency {
    /// Counts one.
    pub(super) fn record(&self, took: Duration) {
        let micros = (took.as_micros() as f64).max(1.0);
        let bucket = (micros.log2() * f64::from(PER_DOUBLING)) as usize;
        self.0[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// The duration that this share of all were not over; zero when none was counted.
    pub(super) fn percentile(&self, share: f64) -> Duration {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && all > 0 {
                let micros = ((bucket as f64 + 1.0) / f64::from(PER_DOUBLING)).exp2();
                return Duration::from_secs_f64(micros / 1e6);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_off_by_an_eighth_at_most() {
        let latency = Latency::default();
        assert_eq!(latency.percentile(0.5), Duration::ZERO);
        (1..=1000).for_each(|ms| latency.record(Duration::from_millis(ms)));
        for (share, exact) in [(0.5, 0.5), (0.99, 0.99), (1.0, 1.0)] {
            let got = latency.percentile(share).as_secs_f64();
            assert!((exact..exact * 1.13).contains(&got), "{share}: {got}");
        }
    }
}
