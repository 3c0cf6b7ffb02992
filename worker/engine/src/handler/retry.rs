//! The retry policy of a kind.

use std::{fmt, sync::Arc, time::Duration};

use garenne_protocol::task::DeadReason;

use super::{ErrorAction, TaskError};

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
/// # use std::{io, time::Duration};
/// # use garenne::{RetryPolicy, TaskOptions, handler::ErrorClass};
/// let policy = RetryPolicy::default().attempts(5).first(Duration::from_secs(10)).classify(|error| {
///     match error.downcast_ref::<io::Error>().map(io::Error::kind) {
///         Some(io::ErrorKind::NotFound) => ErrorClass::Reject,
///         _ => ErrorClass::Retry,
///     }
/// });
/// let options = TaskOptions::short().retry(policy);
/// ```
#[derive(Clone)]
pub struct RetryPolicy {
    pub(crate) attempts: Option<u32>,
    first: Duration,
    factor: f64,
    cap: Duration,
    classify: Option<Arc<Classify>>,
}

type Classify = dyn Fn(&anyhow::Error) -> ErrorClass + Send + Sync;

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, first, factor, cap, classify } = self;
        f.debug_struct("RetryPolicy")
            .field("attempts", attempts)
            .field("first", first)
            .field("factor", factor)
            .field("cap", cap)
            .field("classify", &classify.is_some())
            .finish()
    }
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
    /// Sets the maximum number of attempts, at least 1. Default: the worker's setting `max_attempts`.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts: Some(attempts), ..self }
    }

    /// Sets the back-off before the second attempt. Default: 1 s.
    #[must_use]
    pub fn first(self, first: Duration) -> Self {
        Self { first, ..self }
    }

    /// Sets the factor between consecutive back-offs. Values below 1 count as 1. Default: 3.
    #[must_use]
    pub fn factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// Sets the maximum back-off. Default: an hour.
    #[must_use]
    pub fn cap(self, cap: Duration) -> Self {
        Self { cap, ..self }
    }

    /// Classifies errors that a handler passed on with `?`. Errors that contain a [`TaskError`] are not classified.
    #[must_use]
    pub fn classify(self, classify: impl Fn(&anyhow::Error) -> ErrorClass + Send + Sync + 'static) -> Self {
        Self { classify: Some(Arc::new(classify)), ..self }
    }

    /// The maximum number of attempts in a worker with this `max_attempts`.
    pub(crate) fn most_attempts(&self, max_attempts: u32) -> u32 {
        self.attempts.unwrap_or(max_attempts).max(1)
    }

    /// The back-off after `spent` attempts, at least 1.
    pub(crate) fn backoff(&self, spent: u32) -> Duration {
        let power = i32::try_from(spent.saturating_sub(1)).unwrap_or(i32::MAX);
        let wait = self.first.as_secs_f64() * self.factor.max(1.0).powi(power);
        Duration::try_from_secs_f64(wait).map_or(self.cap, |wait| wait.min(self.cap))
    }

    /// Replaces the error's action by the classifier's decision, if there is one.
    pub(crate) fn classify_error(&self, error: TaskError) -> TaskError {
        let Some((classify, undecided)) = self.classify.as_ref().zip(error.undecided()) else { return error };
        match classify(undecided) {
            ErrorClass::Retry => error,
            ErrorClass::RetryAfter(after) => error.with_action(ErrorAction::Retry { after: Some(after) }),
            ErrorClass::Reject => error.with_action(ErrorAction::Dead(DeadReason::Rejected)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn back_offs_grow_up_to_the_cap() {
        let policy = RetryPolicy::default().cap(Duration::from_secs(60));
        let backoffs: Vec<_> = [1, 2, 3, 4, 5, 6, 4_000_000_000].map(|n| policy.backoff(n).as_secs()).into();
        assert_eq!(backoffs, [1, 3, 9, 27, 60, 60, 60]);
    }

    #[test]
    fn only_errors_that_came_through_the_question_mark_are_classified() {
        let not_found = "a".to_owned();
        let policy = RetryPolicy::default().classify(move |error| match error.downcast_ref::<io::Error>() {
            Some(error) if error.to_string() == not_found => ErrorClass::Reject,
            _ => ErrorClass::Retry,
        });
        let action = |error: TaskError| policy.classify_error(error).action;
        let io = |text: &str| anyhow::Error::from(io::Error::other(text.to_owned())).context("reading");
        assert!(matches!(action(io("a").into()), ErrorAction::Dead(_)));
        assert!(matches!(action(io("b").into()), ErrorAction::Retry { .. }));
        assert!(matches!(action(TaskError::retry(io("a"))), ErrorAction::Retry { .. }));
    }
}
