//! The error of a handler, which decides what becomes of the task.

use std::{
    error::Error,
    fmt::{self, Display, Formatter},
    sync::Arc,
    time::Duration,
};

use garenne_protocol::task::DeadReason;

use super::PayloadError;

/// The result of a handler, or of a function that one calls. Its error is [`anyhow::Error`](crate::Error), so `?` takes every
/// error. A [`TaskError`] inside keeps what it says about the task, also below a context.
pub type Result<T, E = anyhow::Error> = std::result::Result<T, E>;

/// Why a handler did not finish its task, and what is to become of the task.
///
/// | constructor | the task | attempt spent |
/// | --- | --- | --- |
/// | [`retry`](Self::retry), or `?` on any error in a handler that returns [`garenne::Result`](Result) | is retried after the kind's back-off | yes |
/// | [`retry_after`](Self::retry_after) | is retried after a given time | yes |
/// | [`snooze`](Self::snooze) | is deferred | no |
/// | [`reject`](Self::reject), [`invalid`](Self::invalid), [`unmapped`](Self::unmapped) | becomes a dead letter | |
/// | [`interrupted`](Self::interrupted) | depends on why it was cancelled | |
///
/// A task whose attempts are spent becomes a dead letter with reason `attempts-exhausted`.
///
/// The constructors take a text or an error. The error's causes are part of the text in logs and dead letters.
///
/// ```
/// # use garenne::{TaskContext, TaskError};
/// async fn import(path: String) -> garenne::Result<usize> {
///     if path.is_empty() {
///         return Err(TaskError::invalid("path is empty").into()); // a dead letter
///     }
///     let text = tokio::fs::read_to_string(&path).await?; // retried
///     let count = text.trim().parse().map_err(TaskError::reject)?; // a dead letter
///     Ok(count)
/// }
/// ```
///
/// A service with an error type of its own writes once what becomes of a task, and returns it from its handlers:
///
/// ```
/// # use std::{fmt, time::Duration};
/// # use garenne::{TaskContext, TaskError};
/// # impl fmt::Display for MailError {
/// #     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{self:?}") }
/// # }
/// # impl std::error::Error for MailError {}
/// #[derive(Debug)]
/// enum MailError {
///     NoSuchAddress,
///     Busy,
/// }
///
/// impl From<MailError> for TaskError {
///     fn from(error: MailError) -> Self {
///         match error {
///             MailError::NoSuchAddress => Self::reject(error),
///             MailError::Busy => Self::retry_after(error, Duration::from_secs(60)),
///         }
///     }
/// }
///
/// async fn send(address: String) -> Result<(), MailError> {
///     if address.contains('@') { Ok(()) } else { Err(MailError::NoSuchAddress) }
/// }
/// ```
#[derive(Clone)]
pub struct TaskError {
    pub(crate) action: ErrorAction,
    /// The error and its causes, separated by ": ".
    message: Arc<str>,
    source: Source,
}

/// What an error was made of.
#[derive(Clone)]
enum Source {
    /// The text or error that a constructor was given.
    Error(Arc<dyn Error + Send + Sync>),
    /// The error that came through `?`. The kind's classifier judges it.
    Any(Arc<anyhow::Error>),
}

/// The settlement of a task that returned an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ErrorAction {
    /// Another attempt, after the kind's back-off or after a given wait.
    Retry { after: Option<Duration> },
    /// No further attempt.
    Dead(DeadReason),
    /// Another run after `wait`, without spending an attempt.
    Snooze { wait: Duration },
    /// Back to its queue, without spending an attempt.
    HandBack,
}

impl TaskError {
    /// A transient error. The task is retried after the back-off of its kind's [`RetryPolicy`](super::RetryPolicy).
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorAction::Retry { after: None }, error)
    }

    /// A transient error of known duration. The task is retried not before `after`.
    ///
    /// A wait of more than 30 days counts as 30 days.
    pub fn retry_after(error: impl Into<Box<dyn Error + Send + Sync>>, after: Duration) -> Self {
        Self::new(ErrorAction::Retry { after: Some(after) }, error)
    }

    /// A permanent error. The task becomes a dead letter with reason `rejected`.
    pub fn reject(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Rejected), error)
    }

    /// The payload is invalid. The task becomes a dead letter with reason `invalid-payload`.
    pub fn invalid(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::InvalidPayload), error)
    }

    /// No map makes anything of a foreign message. It becomes a dead letter with reason `unmapped`, which can be replayed
    /// after the map was corrected.
    #[cfg(feature = "foreign")]
    pub fn unmapped(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Unmapped), error)
    }

    /// The task cannot run now. It is deferred by `wait`, without spending an attempt.
    pub fn snooze(wait: Duration) -> Self {
        Self::new(ErrorAction::Snooze { wait }, "snoozed")
    }

    /// The handler stopped because its [token](super::TaskContext::token) was cancelled.
    ///
    /// The reason of the cancellation decides: after a shutdown the task is handed back without spending an
    /// attempt, after its deadline an attempt is spent, and after an operator's stop it becomes a dead letter with
    /// reason `stopped`.
    pub fn interrupted() -> Self {
        Self::new(ErrorAction::HandBack, "interrupted")
    }

    /// The task expired before it started.
    pub(crate) fn expired() -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Expired), "expired before it started")
    }

    /// An operator stopped the task before it started.
    pub(crate) fn stopped() -> Self {
        Self::new(ErrorAction::Dead(DeadReason::Stopped), "stopped by an operator")
    }

    /// The error's text with those of its causes. It is logged, and written into the dead letter if the task becomes one: there
    /// a long text loses its middle.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What becomes of the task, as dead letters and metrics name it: `retry`, `snooze`, `hand-back`, or the reason of a dead
    /// letter, such as `rejected`. A classifier of the kind ([`RetryPolicy::classify`](super::RetryPolicy::classify)) may still
    /// decide otherwise about an error that came through `?`, and a task whose attempts are spent is not retried.
    ///
    /// ```
    /// # use garenne::TaskError;
    /// assert_eq!(TaskError::reject("no such address").decision(), "rejected");
    /// assert_eq!(TaskError::retry("busy").decision(), "retry");
    /// ```
    pub fn decision(&self) -> &'static str {
        match self.action {
            ErrorAction::Retry { .. } => "retry",
            ErrorAction::Dead(reason) => reason.as_str(),
            ErrorAction::Snooze { .. } => "snooze",
            ErrorAction::HandBack => "hand-back",
        }
    }

    /// The error that a constructor was given, or that came through `?`, if it is an `E`.
    ///
    /// ```
    /// # use garenne::TaskError;
    /// # use std::io::{Error, ErrorKind};
    /// let error = TaskError::retry(Error::from(ErrorKind::NotConnected));
    /// assert_eq!(error.downcast_ref::<Error>().map(Error::kind), Some(ErrorKind::NotConnected));
    /// ```
    pub fn downcast_ref<E: Error + Send + Sync + 'static>(&self) -> Option<&E> {
        match &self.source {
            Source::Error(error) => error.downcast_ref(),
            Source::Any(error) => error.downcast_ref(),
        }
    }

    /// The error that came through `?`, if no constructor decided about it.
    pub(crate) fn undecided(&self) -> Option<&anyhow::Error> {
        match &self.source {
            Source::Any(error) => Some(error),
            Source::Error(_) => None,
        }
    }

    /// The same error with another decision.
    pub(crate) fn with_action(self, action: ErrorAction) -> Self {
        Self { action, ..self }
    }

    fn new(action: ErrorAction, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error: Arc<dyn Error + Send + Sync> = error.into().into();
        let message = with_causes(&*error).into();
        Self { action, message, source: Source::Error(error) }
    }
}

/// The text of an error and those of its causes that it does not contain itself.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl Display for TaskError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskError").field("action", &self.action).field("message", &self.message).finish()
    }
}

impl Error for TaskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.source {
            Source::Error(error) => error.source(),
            Source::Any(error) => error.source(),
        }
    }
}

impl From<PayloadError> for TaskError {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::Malformed(message) => Self::new(ErrorAction::Dead(DeadReason::Malformed), message),
            PayloadError::Invalid(message) => Self::invalid(message),
        }
    }
}

/// A [`TaskError`] inside keeps what it says about the task. Any other error is retried, unless
/// [`RetryPolicy::classify`](super::RetryPolicy::classify) decides otherwise.
impl From<anyhow::Error> for TaskError {
    fn from(error: anyhow::Error) -> Self {
        let message = with_causes(error.as_ref()).into();
        match error.downcast_ref::<Self>() {
            Some(decided) => Self {
                action: decided.action.clone(),
                message,
                source: Source::Error(Arc::from(Box::<dyn Error + Send + Sync>::from(error))),
            },
            None => Self {
                action: ErrorAction::Retry { after: None },
                message,
                source: Source::Any(Arc::new(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot fetch {path}")]
    struct Fetch {
        path: &'static str,
        source: io::Error,
    }

    fn fetch() -> Fetch {
        Fetch { path: "/a.png", source: io::Error::other("connection refused") }
    }

    #[test]
    fn the_text_has_the_whole_chain_of_causes() {
        assert_eq!(TaskError::retry(fetch()).message(), "cannot fetch /a.png: connection refused");
        let error = TaskError::from(anyhow::Error::new(fetch()).context("resizing"));
        assert_eq!(error.message(), "resizing: cannot fetch /a.png: connection refused");
        assert_eq!(error.to_string(), error.message());
        assert_eq!(error.source().unwrap().to_string(), "cannot fetch /a.png");
    }

    #[test]
    fn a_cause_that_the_text_contains_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start: {0}")]
        struct Start(#[source] io::Error);
        assert_eq!(TaskError::retry(Start(io::Error::other("no port"))).message(), "cannot start: no port");
    }

    #[test]
    fn a_task_error_keeps_its_action_below_contexts_and_question_marks() {
        fn parse() -> Result<()> {
            Err(TaskError::reject(fetch()))?;
            Ok(())
        }
        let error = TaskError::from(parse().context("first").context("second").unwrap_err());
        assert_eq!(error.action, ErrorAction::Dead(DeadReason::Rejected));
        assert_eq!(error.message(), "second: first: cannot fetch /a.png: connection refused");
        assert!(error.undecided().is_none());
    }

    #[test]
    fn any_other_error_is_retried() {
        let error = TaskError::from(anyhow::Error::from(io::Error::other("busy")));
        assert_eq!(error.action, ErrorAction::Retry { after: None });
        assert!(error.undecided().is_some());
    }
}
