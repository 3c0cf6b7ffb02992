//! Where tasks leave this process: the broker, or whatever stands for it in a test.

mod broker;
pub mod gather;
pub mod memory;
mod pressure;
mod traced;

use std::time::Duration;

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;

pub use broker::BrokerOutlet;
pub use traced::TracedOutlet;

/// How long a reading waits for its turn to be sent before its sender is told that there is none.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// What is under way while the process ends.
pub(crate) fn closing() -> PublishError {
    PublishError::InDoubt("the gateway is closing".to_owned())
}

/// Takes tasks and answers once it is known that all of them are safe.
pub trait Outlet: Send + Sync + 'static {
    /// Delivers every task, or says why not all of them are known to be safe. After an error some
    /// may be stored all the same; delivering them again under the same ids has no second effect.
    fn deliver(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>>;
}
