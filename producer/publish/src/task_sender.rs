//! Sending tasks, as programs and the spool's drain see it.

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;

/// The outcome of tasks that are in flight when the process ends.
pub fn shutting_down() -> PublishError {
    PublishError::InDoubt("the process is shutting down".to_owned())
}

/// Sends tasks to the broker and waits for their confirms.
pub trait TaskSender: Send + Sync + 'static {
    /// Resolves when the broker has confirmed all tasks. If it fails, some may be stored all the same; sending all of
    /// them again under the same ids has no second effect.
    fn send(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>>;
}
