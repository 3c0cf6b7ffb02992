//! How many tasks a worker takes at once.

use std::time::{Duration, Instant};

/// How long a batch should take.
const BATCH_TIME: Duration = Duration::from_micros(20);
/// The most tasks in a batch.
const MAX_BATCH: usize = 64;

/// Sizes the batches of one worker by the duration of its last batch.
///
/// Uses the real clock even if Tokio's clock is paused, except in simulations: it measures processor time.
#[derive(Default)]
pub(crate) struct BatchSize {
    size: usize,
    /// When the last batch was taken, and its size.
    last: Option<(Instant, usize)>,
}

impl BatchSize {
    /// The size of the batch that is taken at `now`. Doubles from one up to what fits into [`BATCH_TIME`].
    pub(crate) fn next(&mut self, now: Instant) -> usize {
        self.size = match self.last {
            None => 1,
            Some((taken, tasks)) => {
                let each = now.duration_since(taken).as_nanos() / tasks.max(1) as u128;
                let fits = usize::try_from(BATCH_TIME.as_nanos() / each.max(1)).unwrap_or(MAX_BATCH);
                fits.min(self.size * 2).clamp(1, MAX_BATCH)
            }
        };
        self.size
    }

    /// Records that `tasks` were taken at `now`.
    pub(crate) fn taken(&mut self, now: Instant, tasks: usize) {
        self.last = Some((now, tasks));
    }

    /// Starts again with one task: the last task was not one of a run of quick ones.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of batches whose tasks take `each`.
    fn sizes(batch: &mut BatchSize, each: Duration, batches: usize) -> Vec<usize> {
        let mut now = Instant::now();
        let sizes = (0..batches).map(|_| {
            let size = batch.next(now);
            batch.taken(now, size);
            now += each * size as u32;
            size
        });
        sizes.collect()
    }

    #[test]
    fn batches_double_up_to_what_fits_into_the_batch_time() {
        let quick = Duration::from_nanos(100);
        assert_eq!(sizes(&mut BatchSize::default(), quick, 8), [1, 2, 4, 8, 16, 32, 64, 64]);
        let medium = Duration::from_micros(3);
        assert_eq!(sizes(&mut BatchSize::default(), medium, 5), [1, 2, 4, 6, 6]);
        let slow = Duration::from_millis(1);
        assert_eq!(sizes(&mut BatchSize::default(), slow, 3), [1, 1, 1]);
        assert_eq!(sizes(&mut BatchSize::default(), Duration::ZERO, 4), [1, 2, 4, 8]);
    }

    #[test]
    fn a_reset_starts_again_with_one_task() {
        let mut batch = BatchSize::default();
        assert_eq!(sizes(&mut batch, Duration::from_nanos(100), 4), [1, 2, 4, 8]);
        batch.reset();
        assert_eq!(sizes(&mut batch, Duration::from_nanos(100), 2), [1, 2]);
    }
}
