//! Looks at the messages of a queue that no worker consumes.
//!
//! AMQP has no way to read a message without taking it. A look takes every message of the queue and returns all of
//! them, because a part would change its place among the others. A worker would miss them meanwhile, so a queue with
//! consumers is not looked at unless the operator wants it.

use std::time::SystemTime;

use clap::Args;
use garenne_amqp::take_unreadable;
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::task::{
    ContentType, epoch_ms,
    header::{self, integer},
    read_batch,
};
use lapin::{Connection, message::Delivery};
use serde::Serialize;

use super::{
    inspector::{QueueInspector, QueueStatus},
    walk::QueueWalk,
};

/// A message in a queue of tasks, without its headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuedTask {
    /// The queue.
    pub queue: String,
    /// The task's id, if it has one.
    pub id: Option<String>,
    /// The kind: the property `type`, else the routing key.
    pub kind: String,
    /// The task's group.
    pub group: Option<String>,
    /// The key that selects its queue in a lane with several.
    pub key: Option<String>,
    /// Attempts already spent.
    pub attempts: i64,
    /// When it was published, in milliseconds since 1970, if its publisher wrote that.
    pub published_at: Option<i64>,
    /// When it may start, in milliseconds since 1970; absent if it has no due time.
    pub due_at: Option<i64>,
    /// The number of tasks, if it is a batch.
    pub batch_of: Option<usize>,
    /// Size of the payload.
    pub bytes: usize,
}

impl QueuedTask {
    /// Reads a message. Missing and malformed fields are left out, because any message can be in a queue.
    fn of(queue: &str, delivery: &Delivery) -> Self {
        let mut properties = delivery.properties.clone();
        take_unreadable(&mut properties);
        let headers = properties.headers();
        let number = |name| header::get(headers, name).and_then(integer);
        let seconds = || properties.timestamp().and_then(|at| i64::try_from(at).ok()?.checked_mul(1_000));
        let kind = properties.kind().as_ref().map(|kind| kind.as_str());
        Self {
            queue: queue.to_owned(),
            id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
            kind: kind.unwrap_or(delivery.routing_key.as_str()).to_owned(),
            group: header::get(headers, header::GROUP).and_then(header::text),
            key: header::get(headers, header::KEY).and_then(header::text),
            attempts: number(header::ATTEMPT).unwrap_or(0),
            published_at: number(header::PUBLISHED_AT).or_else(seconds),
            due_at: number(header::NOT_BEFORE),
            batch_of: batch_ids(delivery).map(|ids| ids.len()),
            bytes: delivery.data.len(),
        }
    }
}

/// The ids of the tasks in a batch; [`None`] if the message is none.
fn batch_ids(delivery: &Delivery) -> Option<Vec<String>> {
    let content_type = delivery.properties.content_type().as_ref()?;
    if content_type.as_str() != ContentType::Batch.as_str() {
        return None;
    }
    let records = read_batch(&delivery.data).ok()?;
    Some(records.iter().map(|record| record.id.as_str().to_owned()).collect())
}

/// A message of a look.
pub struct Seen<'d> {
    /// What its properties and headers say of the task.
    pub task: QueuedTask,
    delivery: &'d Delivery,
}

impl Seen<'_> {
    /// Whether the message is a task with this id, or a batch with such a task.
    pub fn has_id(&self, id: &str) -> bool {
        let in_batch = || batch_ids(self.delivery).is_some_and(|ids| ids.iter().any(|it| it == id));
        self.task.id.as_deref() == Some(id) || in_batch()
    }
}

/// Which queues are looked at.
#[derive(Args, Clone, Copy, Debug)]
pub struct LookLimits {
    /// Do not look at a queue with more messages
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub max: u64,
    /// Also look at a queue with consumers, which miss its messages meanwhile. The broker counts a consumer of a paused
    /// lane as long as its worker runs tasks of the lane
    #[arg(long)]
    pub despite_consumers: bool,
}

impl LookLimits {
    /// Why a queue is not looked at; [`None`] if it is.
    pub fn obstacle(self, QueueStatus { ready, consumers, .. }: QueueStatus) -> Option<String> {
        let Self { max, despite_consumers } = self;
        if ready > max {
            return Some(format!("{ready} messages are more than --max {max}"));
        }
        (consumers > 0 && !despite_consumers).then(|| {
            format!(
                "{consumers} consumers would miss its {ready} messages meanwhile: pause the lane, or use \
                 --despite-consumers"
            )
        })
    }
}

/// Checks that the limits allow to look at a queue. Returns its number of messages.
pub async fn allowed(connection: &Connection, queue: &str, limits: LookLimits) -> Result<u64, Failure> {
    let status = QueueInspector::new(connection).depth(queue).await?;
    match limits.obstacle(status) {
        Some(obstacle) => {
            let problem = format!("queue {queue:?} is not looked at: {obstacle}");
            Err(Failure::new(Exit::Failed, problem))
        }
        None => Ok(status.ready),
    }
}

/// Passes each message of a queue to `visit`, in the order of the queue, after `before` if there are any. All of them are
/// back when this returns. If it fails, the broker requeues what was taken.
pub async fn look(
    connection: &Connection,
    queue: &str,
    limits: LookLimits,
    before: impl Future<Output = Result<(), Failure>>,
    mut visit: impl FnMut(Seen<'_>),
) -> Result<(), Failure> {
    if allowed(connection, queue, limits).await? == 0 {
        return Ok(());
    }
    before.await?;
    let mut walk = QueueWalk::start(connection, queue, limits.max).await?;
    while let Some(delivery) = walk.next().await? {
        visit(Seen { task: QueuedTask::of(queue, &delivery), delivery: &delivery });
    }
    walk.finish().await.map(drop)
}

/// How long until a time, or since it, in milliseconds.
pub fn distance(at: i64) -> i64 {
    at.saturating_sub(epoch_ms(SystemTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_with_consumers_or_too_many_messages_is_not_looked_at() {
        let status = |consumers, ready| QueueStatus { consumers, ready, ..QueueStatus::default() };
        let limits = LookLimits { max: 5, despite_consumers: false };
        assert_eq!(limits.obstacle(status(0, 5)), None);
        assert_eq!(limits.obstacle(status(0, 6)).unwrap(), "6 messages are more than --max 5");
        let consumed = limits.obstacle(status(2, 1)).unwrap();
        assert!(consumed.starts_with("2 consumers would miss its 1 messages meanwhile"), "{consumed}");
        let limits = LookLimits { despite_consumers: true, ..limits };
        assert_eq!((limits.obstacle(status(2, 5)), limits.obstacle(status(2, 6)).is_some()), (None, true));
    }
}
