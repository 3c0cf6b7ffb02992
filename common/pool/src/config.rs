//! The settings of a pool.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use crate::observer::Observer;

/// Sizes and timeouts of a pool. They cannot be changed while the pool runs.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The name of the pool in logs, snapshots and thread names.
    pub name: String,
    /// The most tasks that the pool holds, queued and running together. Further tasks are refused with
    /// [`Refusal::QueueFull`](crate::Refusal::QueueFull).
    pub queue: usize,
    /// The minimum and maximum number of workers. The pool grows while tasks wait and shrinks after
    /// `idle_timeout`.
    pub workers: RangeInclusive<usize>,
    /// How long a worker above the minimum may be idle before it exits.
    pub idle_timeout: Duration,
    /// The deadline of long tasks that set none, counted from their start.
    pub default_deadline: Duration,
    /// How long a cancelled task may take to return before the pool gives it up.
    pub grace: Duration,
}

/// Optional parts of a pool, for [`Pool::start_with`](crate::Pool::start_with).
#[derive(Clone, Default)]
pub struct PoolOptions {
    /// Called when tasks start and end.
    pub observer: Option<Arc<dyn Observer>>,
    /// How long a worker pauses after its task panicked.
    pub restart: Backoff,
}

/// What a simulation of the program around the pool replaces. The pool then also takes Tokio's clock, which may be
/// paused, for what it otherwise measures with the real one.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Simulation {
    /// A random number, uniform in `0.0..1.0`.
    pub random: fn() -> f64,
    /// Spawns a worker or the monitor.
    pub spawn: fn(BoxFuture<'static, ()>),
}

/// How long a worker pauses after a panic: doubling per panic in a row, capped, with full jitter.
///
/// The pause keeps a task that always panics from turning the pool into a busy loop.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The longest pause after the first panic in a row.
    pub base: Duration,
    /// The longest pause after any number of panics.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(1), cap: Duration::from_millis(100) }
    }
}

impl Backoff {
    /// `jitter` is a random number from 0 to 1.
    pub(crate) fn pause(self, panics_in_a_row: u32, jitter: f64) -> Duration {
        let doubled = self.base.saturating_mul(1 << panics_in_a_row.saturating_sub(1).min(20));
        doubled.min(self.cap).mul_f64(jitter)
    }
}

/// A setting of a [`PoolConfig`] that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: must be {limit}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field of [`PoolConfig`].
    pub field: &'static str,
    /// The value that the field has.
    pub value: String,
    /// The allowed values.
    pub limit: String,
}

impl PoolConfig {
    /// Checks the settings. [`Pool::start`](crate::Pool::start) does so too.
    ///
    /// # Errors
    /// The first setting that is not allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (min, max) = (*self.workers.start(), *self.workers.end());
        let workers = format!("{min}..{max}");
        let (field, value, limit) = if min == 0 {
            ("workers", workers, "at least 1".to_owned())
        } else if min > max {
            ("workers", workers, "a minimum not above the maximum".to_owned())
        } else if max > self.queue {
            ("workers", workers, format!("at most queue ({})", self.queue))
        } else if self.default_deadline.is_zero() {
            ("default_deadline", "0s".to_owned(), "above 0s".to_owned())
        } else {
            return Ok(());
        };
        Err(ConfigError { field, value, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(queue: usize, workers: RangeInclusive<usize>) -> PoolConfig {
        PoolConfig {
            name: "test".to_owned(),
            queue,
            workers,
            idle_timeout: Duration::from_secs(1),
            default_deadline: Duration::from_secs(1),
            grace: Duration::from_secs(1),
        }
    }

    #[test]
    fn an_invalid_setting_is_reported_with_field_value_and_limit() {
        let text = |queue, workers| config(queue, workers).validate().unwrap_err().to_string();
        assert_eq!(text(4, 0..=2), "workers is 0..2: must be at least 1");
        #[expect(clippy::reversed_empty_ranges, reason = "the reversed range is what is refused")]
        let reversed = 3..=2;
        assert_eq!(text(4, reversed), "workers is 3..2: must be a minimum not above the maximum");
        assert_eq!(text(4, 1..=5), "workers is 1..5: must be at most queue (4)");
        assert_eq!(config(4, 1..=4).validate(), Ok(()));
        assert_eq!(config(4, 4..=4).validate(), Ok(()));
        let mut no_deadline = config(4, 1..=4);
        no_deadline.default_deadline = Duration::ZERO;
        let error = no_deadline.validate().unwrap_err();
        assert_eq!(error.to_string(), "default_deadline is 0s: must be above 0s");
    }

    #[test]
    fn pauses_double_up_to_the_cap() {
        let backoff = Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(5) };
        let pauses: Vec<_> = (1..=5).map(|n| backoff.pause(n, 1.0).as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.pause(u32::MAX, 0.5), Duration::from_micros(2500));
        let uncapped = Backoff { base: Duration::from_micros(1), cap: Duration::MAX };
        assert_eq!(uncapped.pause(u32::MAX, 1.0), Duration::from_micros(1 << 20));
    }

    #[test]
    fn the_default_pauses_for_a_millisecond_to_a_tenth_of_a_second() {
        let pauses = [1, 100].map(|n| Backoff::default().pause(n, 1.0).as_millis());
        assert_eq!(pauses, [1, 100]);
    }
}
