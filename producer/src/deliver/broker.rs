//! Straight to the broker, as any AMQP client may.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::exit::{Exit, HasExit};
use garenne_gateway::{identity, outlet::Outlet};
use garenne_protocol::{
    sensor::Reading,
    task::{ContentType, Kind, NewTask, TaskId},
};

use super::{Destination, Setback};

/// Publishes each reading as a task.
pub struct BrokerDestination {
    outlet: Arc<dyn Outlet>,
    kind: Kind,
    /// Whether several queues share these tasks, so that each wants its device as a key.
    spread: bool,
}

impl BrokerDestination {
    /// Publishes readings as tasks of `kind`.
    /// `spread` where several queues share them.
    pub fn new(outlet: Arc<dyn Outlet>, kind: Kind, spread: bool) -> Self {
        Self { outlet, kind, spread }
    }

    async fn publish(&self, batch: &[Reading]) -> Result<Vec<TaskId>, Setback> {
        let tasks: Vec<NewTask> = batch
            .iter()
            .map(|reading| {
                let body = serde_json::to_vec(reading).expect("a reading is plain JSON");
                NewTask {
                    id: identity::of(reading),
                    key: self.spread.then(|| reading.device.to_string()),
                    ..NewTask::new(self.kind.clone(), ContentType::Json, body)
                }
            })
            .collect();
        let ids = tasks.iter().map(|task| task.id.clone()).collect();
        self.outlet.deliver(tasks).await.map(|()| ids).map_err(|error| setback(&error))
    }
}

/// Whether trying again can help.
pub(crate) fn setback(error: &PublishError) -> Setback {
    let why = error.to_string();
    match error {
        PublishError::Unroutable { .. } | PublishError::TooLarge { .. } => {
            Setback::Never { why, exit: Exit::Failed }
        }
        PublishError::Denied(_) => Setback::Never { why, exit: Exit::Denied },
        PublishError::Connect(cause) if cause.is_final() => Setback::Never { why, exit: cause.exit() },
        _ => Setback::Again { why, after: None },
    }
}

impl Destination for BrokerDestination {
    fn deliver<'a>(&'a self, batch: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, Setback>> {
        Box::pin(self.publish(batch))
    }
}
