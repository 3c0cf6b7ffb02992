//! A histogram of latencies with constant memory.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Buckets per doubling: the error of a percentile is at most one eighth.
const BUCKETS_PER_DOUBLING: u32 = 8;
const BUCKETS: usize = 40 * BUCKETS_PER_DOUBLING as usize;

/// Counts durations from a microsecond to days. It can be shared between threads.
pub(super) struct LatencyHistogram(Vec<AtomicU64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl LatencyHistogram {
    /// Counts one duration.
    pub(super) fn record(&self, latency: Duration) {
        let micros = (latency.as_micros() as f64).max(1.0);
        let bucket = (micros.log2() * f64::from(BUCKETS_PER_DOUBLING)) as usize;
        self.0[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// The milliseconds that this share of all counted durations did not exceed; zero if none was counted.
    pub(super) fn percentile_ms(&self, share: f64) -> f64 {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        bucket.map_or(0.0, |bucket| ((bucket as f64 + 1.0) / f64::from(BUCKETS_PER_DOUBLING)).exp2() / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_percentiles_is_at_most_an_eighth() {
        let latency = LatencyHistogram::default();
        assert_eq!(latency.percentile_ms(0.5), 0.0);
        (1..=1000).for_each(|ms| latency.record(Duration::from_millis(ms)));
        for (share, exact) in [(0.5, 0.5), (0.99, 0.99), (1.0, 1.0)] {
            let got = latency.percentile_ms(share) / 1000.0;
            assert!((exact..exact * 1.13).contains(&got), "{share}: {got}");
        }
    }
}
