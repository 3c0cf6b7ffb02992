//! Publishes to the broker, without a gateway.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use garenne_amqp::{DeadLetters, PublishError, PublisherConfig};
use garenne_common::{
    config::host_name,
    exit::{Exit, Failure, HasExit},
    telemetry::{Metrics, Traces, traces::LAST_EXPORT},
};
use garenne_gateway::{
    BrokerLink, BrokerSettings, FirstConnection,
    task_publisher::{BrokerPublisher, NotAccepted, SpoolingPublisher, TaskPublisher, TracedPublisher},
};
use garenne_mqtt::LetterPublisher;
use garenne_protocol::{
    sensor::Reading,
    task::{ContentType, Kind, NewTask, TaskId, reading_id},
    topology::Names,
};

use super::{Destination, SendError};

/// A connected publisher of tasks, and the export of its spans.
pub(crate) struct BrokerConnection {
    /// Publishes the tasks.
    pub(crate) tasks: Arc<dyn TaskPublisher>,
    link: BrokerLink,
    traces: Traces,
}

impl BrokerConnection {
    /// Connects to the broker of the settings.
    ///
    /// # Errors
    /// The broker is not available.
    pub(crate) async fn open(settings: &BrokerSettings, config: PublisherConfig) -> Result<Self, Failure> {
        Self::open_within(settings, config, FirstConnection::Required).await
    }

    /// As [`BrokerConnection::open`]. If the broker is unavailable for `wait`, connects later.
    ///
    /// # Errors
    /// The broker denies access.
    pub(super) async fn open_if_available(
        settings: &BrokerSettings,
        config: PublisherConfig,
        wait: Duration,
    ) -> Result<Self, Failure> {
        Self::open_within(settings, config, FirstConnection::Optional(wait)).await
    }

    async fn open_within(
        settings: &BrokerSettings,
        config: PublisherConfig,
        first: FirstConnection,
    ) -> Result<Self, Failure> {
        let metrics = Metrics::new("producer");
        let link = BrokerLink::open(settings, config, &metrics, first).await?;
        let instance = format!("{}-{}", host_name(), std::process::id());
        let traces = settings.traces("garenne-producer", instance, &metrics)?;
        let names = settings.names();
        let tasks = BrokerPublisher::new(link.publisher().clone(), &names, &settings.lanes);
        let tasks = TracedPublisher::wrap(tasks, &traces, &names);
        Ok(Self { tasks: link.after_topology(tasks), link, traces })
    }

    /// Publishes the tasks, and dead letters that the spool of a bridge has.
    pub(crate) fn with_letters(&self, names: Names) -> Arc<dyn TaskPublisher> {
        let letters = DeadLetters::new(self.link.publisher().clone(), names.clone());
        LetterPublisher::in_front_of(Arc::clone(&self.tasks), Arc::new(letters), names)
    }

    /// Closes the connection and exports the remaining spans.
    pub(crate) async fn close(self) {
        self.link.close().await;
        self.traces.close(LAST_EXPORT).await;
    }
}

/// Publishes each reading as a task.
pub(super) struct BrokerDestination {
    pub(super) publisher: Arc<SpoolingPublisher>,
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
            self.publisher.publish(tasks).await.map(|_| ids).map_err(|error| not_accepted(&error))
        })
    }
}

/// Classifies a failure to publish or spool by whether a repetition can succeed.
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
