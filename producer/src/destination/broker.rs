//! Sends to the broker, without a gateway, through a spool if there is one.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_amqp::PublishError;
use garenne_common::{
    config::host_name,
    exit::{Exit, Failure, HasExit},
    telemetry::{Metrics, Traces, traces::LAST_EXPORT},
};
use garenne_protocol::{
    sensor::Reading,
    task::{ContentType, Kind, NewTask, TaskId, reading_id},
};
use garenne_publish::{
    BrokerSettings, NotAccepted, Sending, SpoolCounts, SpoolSettings, SpoolingSender, Uplink,
};

use super::{Destination, SendError};

/// A connection to the broker of a command, and the export of its spans.
pub(crate) struct BrokerConnection {
    /// Sends or spools the tasks.
    pub(crate) tasks: Arc<SpoolingSender>,
    pub(crate) uplink: Uplink,
    traces: Traces,
}

impl BrokerConnection {
    /// Connects to the broker, and opens the spool if the settings have one, which is drained from now on. Without a
    /// spool, the broker must be available.
    pub(crate) async fn open(
        settings: &BrokerSettings,
        sending: Sending,
        spool: &SpoolSettings,
    ) -> Result<Self, Failure> {
        let metrics = Metrics::new("producer");
        let instance = format!("{}-{}", host_name(), std::process::id());
        let traces = settings.traces("garenne-producer", instance, &metrics)?;
        let (tasks, uplink) = Uplink::open(settings, sending, spool, (&metrics, &traces)).await?;
        Ok(Self { tasks: Arc::new(tasks), uplink, traces })
    }

    /// Drains the spool until it is empty or the broker does not confirm, closes the connection and exports the remaining
    /// spans.
    pub(crate) async fn close(self) -> Option<SpoolCounts> {
        let Self { tasks, uplink, traces } = self;
        // It has a handle of the spool, which is to be closed.
        drop(tasks);
        let counts = uplink.finish().await;
        traces.close(LAST_EXPORT).await;
        counts
    }
}

/// Sends each reading as a task.
pub(super) struct BrokerDestination {
    pub(super) tasks: Arc<SpoolingSender>,
    pub(super) kind: Kind,
    /// Whether the lane of these tasks has several shards: then each task has its device as its key.
    pub(super) sharded: bool,
}

impl Destination for BrokerDestination {
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>> {
        Box::pin(async {
            let task = |reading: &Reading| {
                let body = serde_json::to_vec(reading).expect("a reading is plain JSON");
                NewTask {
                    id: reading_id(reading),
                    key: self.sharded.then(|| reading.device.to_string()),
                    ..NewTask::new(self.kind.clone(), ContentType::Json, body)
                }
            };
            let tasks: Vec<NewTask> = readings.iter().map(task).collect();
            let ids = tasks.iter().map(|task| task.id.clone()).collect();
            self.tasks.send(tasks).await.map(|_| ids).map_err(|error| not_accepted(&error))
        })
    }
}

/// Classifies a failure to send or spool by whether a repetition can succeed.
pub(crate) fn not_accepted(error: &NotAccepted) -> SendError {
    match error {
        NotAccepted::Broker(error) => send_error(error),
        NotAccepted::Spool(error) => SendError::Retry { reason: error.to_string(), retry_after: None },
    }
}

/// Classifies an error of the publisher by whether a repetition can succeed.
pub(crate) fn send_error(error: &PublishError) -> SendError {
    let exit = match error {
        PublishError::Unroutable { .. } | PublishError::TooLarge { .. } => Exit::Failed,
        PublishError::Denied(_) => Exit::Denied,
        PublishError::Connect(cause) if cause.is_final() => cause.exit(),
        _ => return SendError::Retry { reason: error.to_string(), retry_after: None },
    };
    SendError::Fatal(Failure::new(exit, error))
}
