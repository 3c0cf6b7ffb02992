//! Sizes and timeouts of a pool.

use std::{ops::RangeInclusive, time::Duration};

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

/// A setting of a [`PoolConfig`] that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: must be {limit}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field of [`PoolConfig`].
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub limit: String,
}

impl PoolConfig {
    /// Checks the settings. [`Pool::start`](crate::Pool::start) does so too.
    ///
    /// # Errors
    /// The first setting that is not allowed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (min, max) = (*self.workers.start(), *self.workers.end());
        let workers = || format!("{min}..{max}");
        if min == 0 {
            return refuse("workers", workers(), "at least 1".to_owned());
        }
        if min > max {
            return refuse("workers", workers(), "a minimum not above the maximum".to_owned());
        }
        if max > self.queue {
            return refuse("workers", workers(), format!("at most queue ({})", self.queue));
        }
        if self.default_deadline.is_zero() {
            return refuse("default_deadline", "0s".to_owned(), "above 0s".to_owned());
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
}
