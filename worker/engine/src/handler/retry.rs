//! The retry policy of a kind.

use std::{error::Error, time::Duration};

use super::TaskError;

/// How a classifier judges an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Transient: retry after the kind's back-off.
    Retry,
    /// Transient: retry not before this time has passed.
    RetryAfter(Duration),
    /// Permanent: a dead letter with reason `rejected`.
    Reject,
}

/// When and how often failed tasks of a kind are retried.
///
/// The back-off is exponential and capped: `first`, `first * factor`, `first * factor²`, … up to `cap`. Retries wait
/// in the delay queues of the lane's retry ladder. Each takes one of the two delays next to its back-off, at random,
/// so that tasks that failed together are not retried together. The mean delay is the back-off.
///
/// The default retries after 1 s, 3 s, 9 s and so on, up to an hour. The worker's setting `max_attempts` limits the
/// number of attempts.
///
/// ```
/// # use std::{error::Error, io, time::Duration};
/// # use garenne::{RetryPolicy, TaskOptions, handler::ErrorClass};
/// fn classify(error: &(dyn Error + Send + Sync + 'static)) -> ErrorClass {
///     match error.downcast_ref::<io::Error>().map(io::Error::kind) {
///         Some(io::ErrorKind::NotFound) => ErrorClass::Reject,
///         _ => ErrorClass::Retry,
///     }
/// }
///
/// let policy = RetryPolicy {
///     attempts: Some(5),
///     first: Duration::from_secs(10),
///     classify: Some(classify),
///     ..RetryPolicy::default()
/// };
/// let options = TaskOptions::short().retry(policy);
/// ```
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// The maximum number of attempts, at least 1. [`None`] means the worker's setting `max_attempts`.
    pub attempts: Option<u32>,
    /// The back-off before the second attempt.
    pub first: Duration,
    /// The factor between consecutive back-offs. Values below 1 count as 1.
    pub factor: f64,
    /// The maximum back-off.
    pub cap: Duration,
    /// Classifies errors that a handler passed on with `?`. Errors built with a constructor of [`TaskError`] are not
    /// classified.
    pub classify: Option<fn(&(dyn Error + Send + Sync + 'static)) -> ErrorClass>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: None,
            first: Duration::from_secs(1),
            factor: 3.0,
            cap: Duration::from_secs(3600),
            classify: None,
        }
    }
}

impl RetryPolicy {
    /// The back-off after `spent` attempts, at least 1.
    pub(crate) fn backoff(&self, spent: u32) -> Duration {
        let power = i32::try_from(spent.saturating_sub(1)).unwrap_or(i32::MAX);
        let wait = self.first.as_secs_f64() * self.factor.max(1.0).powi(power);
        Duration::try_from_secs_f64(wait).map_or(self.cap, |wait| wait.min(self.cap))
    }

    /// Replaces the error's action by the classifier's decision, if there is one.
    pub(crate) fn classify_error(&self, error: TaskError) -> TaskError {
        let Some((classify, source)) = self.classify.zip(error.source.clone()) else { return error };
        match classify(source.as_ref()) {
            ErrorClass::Retry => error,
            ErrorClass::RetryAfter(after) => TaskError::retry_after(error.message, after),
            ErrorClass::Reject => TaskError::reject(error.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::handler::ErrorAction;

    #[test]
    fn back_offs_grow_up_to_the_cap() {
        let policy = RetryPolicy { cap: Duration::from_secs(60), ..RetryPolicy::default() };
        let backoffs: Vec<_> = [1, 2, 3, 4, 5, 6, 4_000_000_000].map(|n| policy.backoff(n).as_secs()).into();
        assert_eq!(backoffs, [1, 3, 9, 27, 60, 60, 60]);
    }

    #[test]
    fn only_errors_converted_with_the_question_mark_are_classified() {
        fn classify(error: &(dyn Error + Send + Sync + 'static)) -> ErrorClass {
            match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::NotFound) => ErrorClass::Reject,
                _ => ErrorClass::Retry,
            }
        }
        let policy = RetryPolicy { classify: Some(classify), ..RetryPolicy::default() };
        let action = |error: TaskError| policy.classify_error(error).action;
        assert!(matches!(action(io::Error::from(io::ErrorKind::NotFound).into()), ErrorAction::Dead(_)));
        assert!(matches!(action(io::Error::from(io::ErrorKind::TimedOut).into()), ErrorAction::Retry { .. }));
        assert!(matches!(action(TaskError::retry("not found")), ErrorAction::Retry { .. }));
    }
}
