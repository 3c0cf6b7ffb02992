//! Publishing tasks with publisher confirms.
//!
//! [`BrokerPublisher`] publishes to the broker, [`group_commit::GroupCommit`] puts many tasks into one message in
//! front of it, and [`TracedPublisher`] adds spans. [`SpoolingPublisher`] stores tasks in a spool while they are not
//! confirmed, and [`SpoolDrain`] publishes them later.

mod broker;
pub mod group_commit;
mod on_runtime;
mod spool_drain;
mod spooling;
mod traced;
mod unconfirmed;

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;

pub use broker::BrokerPublisher;
pub use spool_drain::{DrainError, SpoolDrain};
pub use spooling::{Durability, NotAccepted, SpoolingPublisher};
pub use traced::TracedPublisher;

/// How long a task may wait for a publisher permit or room in a message before it is refused.
pub const PUBLISH_SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// The outcome of tasks that are in flight when the process ends.
pub(crate) fn shutting_down() -> PublishError {
    PublishError::InDoubt("the gateway is shutting down".to_owned())
}

/// Publishes tasks and waits for their confirms.
pub trait TaskPublisher: Send + Sync + 'static {
    /// Resolves when the broker has confirmed all tasks.
    ///
    /// # Errors
    /// At least one task is not confirmed. Some may be stored all the same; publishing all of them again under the same
    /// ids has no second effect.
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>>;
}

/// Publishes a group of tasks as one message.
pub trait GroupPublisher: Send + Sync + 'static {
    /// Checks whether tasks may be published now.
    ///
    /// # Errors
    /// New tasks should be refused with this error.
    fn check_ready(&self) -> Result<(), PublishError> {
        Ok(())
    }

    /// Resolves when the broker has confirmed the message.
    fn publish_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>>;
}
