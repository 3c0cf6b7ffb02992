//! Why a supervised task or thread has no result.

use std::{
    any::Any,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::task::JoinError;

/// Why a supervised task or thread has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It panicked with this message.
    #[error("panicked: {0}")]
    Panicked(String),
    /// It returned this error.
    #[error("{0}")]
    Failed(String),
    /// It is essential and returned before the process was told to stop.
    #[error("returned before the process was told to stop")]
    Returned,
    /// It was aborted, or its runtime shut down.
    #[error("aborted")]
    Aborted,
}

impl Failure {
    pub(super) fn of_join(error: JoinError) -> Self {
        error.try_into_panic().map_or(Self::Aborted, |payload| Self::Panicked(panic_message(payload)))
    }
}

/// The return value of a task whose errors are failures: `()`, or a `Result`.
pub trait TaskResult {
    /// The value of a task that did not fail.
    type Value;

    /// The value, or the error's text.
    ///
    /// # Errors
    /// The task returned an error.
    fn into_result(self) -> Result<Self::Value, Failure>;
}

impl TaskResult for () {
    type Value = ();

    fn into_result(self) -> Result<(), Failure> {
        Ok(())
    }
}

impl<T, E: fmt::Display> TaskResult for Result<T, E> {
    type Value = T;

    fn into_result(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::Failed(error.to_string()))
    }
}

/// The message of a panic, from the payload that `catch_unwind` returns.
pub(super) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&'static str>().copied());
    let message = text.unwrap_or("panic payload is not a string").to_owned();
    // The payload's destructor may panic too. Leaking that second payload ends the chain.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload))).map_err(mem::forget);
    message
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            // `resume_unwind` skips the panic hook, which would print a backtrace.
            resume_unwind(Box::new("dropped"));
        }
    }

    #[test]
    fn messages_are_read_from_string_payloads_only() {
        assert_eq!(panic_message(Box::new("static")), "static");
        assert_eq!(panic_message(Box::new("owned".to_owned())), "owned");
        assert_eq!(panic_message(Box::new(7)), "panic payload is not a string");
        assert_eq!(panic_message(Box::new(PanicsOnDrop)), "panic payload is not a string");
    }
}
