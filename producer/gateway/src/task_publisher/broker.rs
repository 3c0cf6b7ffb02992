//! Publishes tasks to the broker.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use garenne_amqp::{Message, PublishError, Publisher, Target};
use garenne_common::config::Lanes;
use garenne_protocol::{
    task::{Kind, NewTask, TaskId, batch_properties, write_batch},
    topology::Names,
};

use super::{GroupPublisher, TaskPublisher, unconfirmed::UnconfirmedMessages};

/// Most messages of one call in flight at once. It bounds the memory that their frames need.
const MAX_IN_FLIGHT: usize = 512;

/// Publishes each task as a message of its own, or a group of tasks as one batch message.
pub struct BrokerPublisher {
    publisher: Publisher,
    exchange: String,
    /// Tasks of lanes with several shards need a key.
    lanes: Lanes,
    unconfirmed: UnconfirmedMessages,
}

impl BrokerPublisher {
    /// Publishes to the task exchange of `names`, for these lanes.
    pub fn new(publisher: Publisher, names: &Names, lanes: &Lanes) -> Arc<Self> {
        Self::with_max_confirm_latency(publisher, names, lanes, Duration::MAX)
    }

    /// As [`BrokerPublisher::new`], but refuses tasks with [`PublishError::Busy`] while a message has been unconfirmed
    /// for longer than `limit`.
    pub fn with_max_confirm_latency(
        publisher: Publisher,
        names: &Names,
        lanes: &Lanes,
        limit: Duration,
    ) -> Arc<Self> {
        let (exchange, lanes, unconfirmed) = (names.tasks(), lanes.clone(), UnconfirmedMessages::new(limit));
        Arc::new(Self { publisher, exchange, lanes, unconfirmed })
    }

    fn target(&self, kind: &Kind) -> Target {
        Target::exchange(self.exchange.clone(), kind.as_str().to_owned())
    }

    async fn publish_one(&self, task: NewTask) -> Result<(), PublishError> {
        let task = if self.lanes.spread(task.kind.as_str()) { task.keyed() } else { task };
        let (target, properties) = (self.target(&task.kind), task.properties(SystemTime::now()));
        let _unconfirmed = self.unconfirmed.track();
        self.publisher.publish(Message { target, properties, body: task.body.into() }).await
    }

    /// Publishes each task as a message of its own, at most [`MAX_IN_FLIGHT`] at once.
    async fn publish_each(&self, tasks: Vec<NewTask>) -> Result<(), PublishError> {
        let mut tasks = tasks.into_iter();
        let mut in_flight: FuturesUnordered<_> =
            tasks.by_ref().take(MAX_IN_FLIGHT).map(|task| self.publish_one(task)).collect();
        // Waits for every confirm, also after a failure: no message may be in flight after the caller has answered.
        let mut outcome = Ok(());
        while let Some(result) = in_flight.next().await {
            outcome = outcome.and(result);
            if outcome.is_ok()
                && let Some(task) = tasks.next()
            {
                in_flight.push(self.publish_one(task));
            }
        }
        outcome
    }
}

impl GroupPublisher for BrokerPublisher {
    fn check_ready(&self) -> Result<(), PublishError> {
        self.unconfirmed.check_overdue()
    }

    fn publish_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        Box::pin(async move {
            let batch = match &tasks[..] {
                [first, _, ..] => write_batch(&tasks).ok().map(|body| (first.kind.clone(), body)),
                _ => None,
            };
            match batch {
                Some((kind, body)) => {
                    let key = self.lanes.spread(kind.as_str()).then(|| batch_key(&tasks));
                    let properties = batch_properties(&kind, key.as_deref(), SystemTime::now());
                    let target = self.target(&kind);
                    let _unconfirmed = self.unconfirmed.track();
                    self.publisher.publish(Message { target, properties, body: body.into() }).await
                }
                // A single task, or tasks that do not fit into a batch message.
                None => self.publish_each(tasks).await,
            }
        })
    }
}

/// The key of the batch message: the key of its tasks if all have the same, else a random one. One batch per key would
/// make as many messages as there are devices.
fn batch_key(tasks: &[NewTask]) -> String {
    let first = tasks.first().and_then(|task| task.key.as_ref());
    let shared = first.filter(|key| tasks.iter().all(|task| task.key.as_ref() == Some(key)));
    shared.cloned().unwrap_or_else(|| TaskId::random().as_str().to_owned())
}

impl TaskPublisher for BrokerPublisher {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        Box::pin(async move {
            self.unconfirmed.check_overdue()?;
            self.publish_each(tasks).await
        })
    }
}
