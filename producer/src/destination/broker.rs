//! Publishes readings to the broker, without a gateway.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::exit::{Exit, HasExit};
use garenne_gateway::{reading_id, task_publisher::TaskPublisher};
use garenne_protocol::{
    sensor::Reading,
    task::{ContentType, Kind, NewTask, TaskId},
};

use super::{Destination, SendError};

/// Publishes each reading as a task.
pub struct BrokerDestination {
    publisher: Arc<dyn TaskPublisher>,
    kind: Kind,
    /// Whether the lane of these tasks has several shards: then each task has its device as its key.
    sharded: bool,
}

impl BrokerDestination {
    /// Publishes readings as tasks of `kind`. `sharded` says whether their lane has several shards.
    pub fn new(publisher: Arc<dyn TaskPublisher>, kind: Kind, sharded: bool) -> Self {
        Self { publisher, kind, sharded }
    }

    async fn publish(&self, readings: &[Reading]) -> Result<Vec<TaskId>, SendError> {
        let tasks: Vec<NewTask> = readings
            .iter()
            .map(|reading| {
                let body = serde_json::to_vec(reading).expect("a reading is plain JSON");
                NewTask {
                    id: reading_id(reading),
                    key: self.sharded.then(|| reading.device.to_string()),
                    ..NewTask::new(self.kind.clone(), ContentType::Json, body)
                }
            })
            .collect();
        let ids = tasks.iter().map(|task| task.id.clone()).collect();
        self.publisher.publish(tasks).await.map(|()| ids).map_err(|error| send_error(&error))
    }
}

/// Classifies an error of the publisher by whether a repetition can succeed.
pub(crate) fn send_error(error: &PublishError) -> SendError {
    let reason = error.to_string();
    match error {
        PublishError::Unroutable { .. } | PublishError::TooLarge { .. } => {
            SendError::Fatal { reason, exit: Exit::Failed }
        }
        PublishError::Denied(_) => SendError::Fatal { reason, exit: Exit::Denied },
        PublishError::Connect(cause) if cause.is_final() => SendError::Fatal { reason, exit: cause.exit() },
        _ => SendError::Retry { reason, retry_after: None },
    }
}

impl Destination for BrokerDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(self.publish(readings))
    }
}
