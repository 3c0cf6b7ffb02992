//! When a failed task is tried again.

use std::{error::Error, time::Duration};

use super::TaskError;

/// What a classifier says of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It may pass: by the kind's back-off.
    Retry,
    /// It may pass, not before this long.
    RetryAfter(Duration),
    /// It will not pass: a dead letter with reason `rejected`.
    Reject,
}

/// The back-off of a kind: exponential, capped, and spread over the rungs of the retry ladder that
/// lie next to each wait.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Attempts at most, 1 or more; the worker's setting when absent.
    pub attempts: Option<u32>,
    /// The wait before the second attempt.
    pub first: Duration,
    /// Each further wait is this many times as long, 1 or more.
    pub factor: f64,
    /// No wait is longer.
    pub cap: Duration,
    /// Judges errors that a handler passed on with `?`; what it built as a [`TaskError`] stands.
    pub classify: Option<fn(&(dyn Error + Send + Sync + 'static)) -> Class>,
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
    /// The wait after `spent` attempts, 1 or more.
    pub(crate) fn wait(&self, spent: u32) -> Duration {
        let power = i32::try_from(spent.saturating_sub(1)).unwrap_or(i32::MAX);
        let wait = self.first.as_secs_f64() * self.factor.max(1.0).powi(power);
        Duration::try_from_secs_f64(wait).map_or(self.cap, |wait| wait.min(self.cap))
    }

    /// The error with the classifier's word in it.
    pub(crate) fn judge(&self, error: TaskError) -> TaskError {
        let Some((classify, source)) = self.classify.zip(error.source.clone()) else { return error };
        match classify(source.as_ref()) {
            Class::Retry => error,
            Class::RetryAfter(after) => TaskError::retry_after(error.message, after),
            Class::Reject => TaskError::reject(error.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::handler::ErrorAction;

    #[test]
    fn waits_grow_to_the_cap_and_no_further() {
        let policy = RetryPolicy { cap: Duration::from_secs(60), ..RetryPolicy::default() };
        let waits: Vec<_> = [1, 2, 3, 4, 5, 6, 4_000_000_000].map(|n| policy.wait(n).as_secs()).into();
        assert_eq!(waits, [1, 3, 9, 27, 60, 60, 60]);
    }

    #[test]
    fn the_classifier_judges_what_came_by_the_question_mark() {
        fn classify(error: &(dyn Error + Send + Sync + 'static)) -> Class {
            match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::NotFound) => Class::Reject,
                _ => Class::Retry,
            }
        }
        let policy = RetryPolicy { classify: Some(classify), ..RetryPolicy::default() };
        let wish = |error: TaskError| policy.judge(error).wish;
        assert!(matches!(wish(io::Error::from(io::ErrorKind::NotFound).into()), ErrorAction::Dead(_)));
        assert!(matches!(wish(io::Error::from(io::ErrorKind::TimedOut).into()), ErrorAction::Retry { .. }));
        assert!(matches!(wish(TaskError::retry("not found")), ErrorAction::Retry { .. }));
    }
}
