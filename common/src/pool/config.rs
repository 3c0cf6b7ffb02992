//! Sizes and times of a pool, checked before anything is started.

use std::{ops::RangeInclusive, time::Duration};

/// What a pool is built from. Nothing here can change while the pool runs.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Name in snapshots and logs.
    pub name: String,
    /// The most tasks the pool answers for at once, waiting and running together. One more is refused
    /// with [`Refusal::QueueFull`](super::Refusal::QueueFull).
    pub queue: usize,
    /// Fewest and most workers. The pool grows when work waits and shrinks after `idle_timeout`.
    pub workers: RangeInclusive<usize>,
    /// How long a worker over the minimum may be without work before it leaves.
    pub idle_timeout: Duration,
    /// Deadline of a long task that names none, counted from its start.
    pub default_deadline: Duration,
    /// How long a task that was told to stop may still take before the pool gives it up.
    pub grace: Duration,
}

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: must be {limit}")]
pub struct ConfigError {
    /// The field of [`PoolConfig`] at fault.
    pub field: &'static str,
    /// The value it has.
    pub value: String,
    /// What is allowed.
    pub limit: String,
}

impl PoolConfig {
    /// Checks that the sizes agree with each other.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (min, max) = (*self.workers.start(), *self.workers.end());
        let workers = || format!("{min}..{max}");
        if min == 0 {
            return refuse("workers", workers(), "at least 1".to_owned());
        }
        if min > max {
            return refuse("workers", workers(), "a minimum not over the maximum".to_owned());
        }
        if max > self.queue {
            return refuse("workers", workers(), format!("at most queue ({})", self.queue));
        }
        if self.default_deadline.is_zero() {
            return refuse("default_deadline", "0s".to_owned(), "over 0s".to_owned());
        }
        Ok(())
    }
}

fn refuse(field: &'static str, value: String, limit: String) -> Result<(), ConfigError> {
    Err(ConfigError { field, value, limit })
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
    fn each_refusal_names_field_value_and_limit() {
        let text = |queue, workers| config(queue, workers).validate().unwrap_err().to_string();
        assert_eq!(text(4, 0..=2), "workers is 0..2: must be at least 1");
        #[expect(clippy::reversed_empty_ranges, reason = "the reversed range is what is refused")]
        let reversed = 3..=2;
        assert_eq!(text(4, reversed), "workers is 3..2: must be a minimum not over the maximum");
        assert_eq!(text(4, 1..=5), "workers is 1..5: must be at most queue (4)");
        assert_eq!(config(4, 1..=4).validate(), Ok(()));
        let mut hasty = config(4, 1..=4);
        hasty.default_deadline = Duration::ZERO;
        assert_eq!(hasty.validate().unwrap_err().to_string(), "default_deadline is 0s: must be over 0s");
    }
}
