//! The messages that tasks become.

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

use crate::unconfirmed::UnconfirmedMessages;

/// Most messages of one call in flight at once. It bounds the memory that their frames need.
const MAX_IN_FLIGHT: usize = 512;

/// Sends a group of tasks as one message.
pub trait GroupSender: Send + Sync + 'static {
    /// Checks whether tasks may be sent now. The error is the one to refuse new tasks with.
    fn check_ready(&self) -> Result<(), PublishError> {
        Ok(())
    }

    /// Resolves when the broker has confirmed the message.
    fn send_group(self: Arc<Self>, tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>>;
}

/// Sends each task as a message of its own, at most [`MAX_IN_FLIGHT`] at once.
pub(crate) async fn send_each(
    sender: Arc<dyn GroupSender>,
    tasks: impl IntoIterator<Item = NewTask>,
) -> Result<(), PublishError> {
    let mut tasks = tasks.into_iter().map(|task| Arc::clone(&sender).send_group(vec![task]));
    let mut in_flight: FuturesUnordered<_> = tasks.by_ref().take(MAX_IN_FLIGHT).collect();
    // Waits for every confirm, also after a failure: no message may be in flight after the caller has answered.
    let mut outcome = Ok(());
    while let Some(result) = in_flight.next().await {
        outcome = outcome.and(result);
        if outcome.is_ok()
            && let Some(next) = tasks.next()
        {
            in_flight.push(next);
        }
    }
    outcome
}

/// Makes the messages of tasks and hands them to the broker.
pub struct BrokerMessages {
    publisher: Publisher,
    exchange: String,
    /// Tasks of lanes with several shards need a key.
    lanes: Lanes,
    unconfirmed: UnconfirmedMessages,
}

impl BrokerMessages {
    /// Publishes to the task exchange of `names`, for these lanes. New tasks are refused with [`PublishError::Busy`] while
    /// a message has been unconfirmed for longer than `max_confirm_latency`.
    pub fn new(
        publisher: Publisher,
        names: &Names,
        lanes: &Lanes,
        max_confirm_latency: Duration,
    ) -> Arc<Self> {
        let (exchange, unconfirmed) = (names.tasks(), UnconfirmedMessages::new(max_confirm_latency));
        Arc::new(Self { publisher, exchange, lanes: lanes.clone(), unconfirmed })
    }

    /// The message of several tasks of one kind; `None` if the body of one is not JSON.
    fn batch(&self, tasks: &[NewTask]) -> Option<Message> {
        let (kind, body) = (&tasks.first()?.kind, write_batch(tasks).ok()?);
        let key = self.lanes.spread(kind.as_str()).then(|| batch_key(tasks));
        let properties = batch_properties(kind, key.as_deref(), SystemTime::now());
        Some(Message { target: self.target(kind), properties, body: body.into() })
    }

    fn single(&self, task: NewTask) -> Message {
        let task = if self.lanes.spread(task.kind.as_str()) { task.keyed() } else { task };
        let (target, properties) = (self.target(&task.kind), task.properties(SystemTime::now()));
        Message { target, properties, body: task.body.into() }
    }

    fn target(&self, kind: &Kind) -> Target {
        Target::exchange(self.exchange.clone(), kind.as_str().to_owned())
    }
}

impl GroupSender for BrokerMessages {
    fn check_ready(&self) -> Result<(), PublishError> {
        self.unconfirmed.check_overdue()
    }

    fn send_group(self: Arc<Self>, mut tasks: Vec<NewTask>) -> BoxFuture<'static, Result<(), PublishError>> {
        Box::pin(async move {
            let message = match tasks.len() {
                1 => tasks.pop().map(|task| self.single(task)),
                _ => self.batch(&tasks),
            };
            let Some(message) = message else { return send_each(self, tasks).await };
            let _unconfirmed = self.unconfirmed.track();
            self.publisher.publish(message).await
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
