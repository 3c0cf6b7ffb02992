//! `garenne task run-now`: moves a task that waits in a retry queue to its lane.

use std::time::{Duration, SystemTime};

use clap::Args;
use garenne_amqp::{Message, Publisher, PublisherConfig, Target};
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};
use garenne_operator::{
    operator::Operator,
    queues::{LookLimits, QueueWalk, Snapshot, allowed},
    waits,
};
use garenne_protocol::{
    task::{Copied, header},
    topology::LaneQueues,
};
use lapin::{BasicProperties, Connection};
use serde_json::{Value, json};

use super::listing::{TaskState, WaitingQueue, queues};
use crate::audit_log::{audited, command_line};

/// The command's name in its records.
pub(crate) const AUDIT_NAME: &str = "task.run-now";
/// Time limit of the confirm. It is long, because after a timeout the copy may exist while the original remains.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);

/// `garenne task run-now`.
#[derive(Args, Clone, Debug)]
pub struct RunNowArgs {
    /// The task's id
    #[arg(value_name = "ID")]
    id: String,
    /// Search the retry queues of this lane only
    #[arg(long, value_name = "NAME")]
    lane: Option<String>,
    /// Which queues are searched.
    #[command(flatten)]
    limits: LookLimits,
}

pub(super) async fn run(operator: &Operator, args: &RunNowArgs) -> Result<Exit, Failure> {
    let RunNowArgs { id, lane, limits } = args;
    let moving = run_now(operator, lane.as_deref(), id, *limits);
    let arguments = json!({ "id": id, "lane": lane });
    let result = |lane: &String| -> Value { json!({ "lane": lane }) };
    let lane = audited(operator, command_line(), AUDIT_NAME, arguments, moving, result).await?;
    stdout::print_line(format_args!("task {id} is in the queue of lane {lane}"))?;
    Ok(Exit::Done)
}

/// Publishes a copy of a task in a retry queue to its lane, and removes the original once the copy is confirmed. Returns
/// the lane. If it fails, the task remains; after a lost connection it may be in both queues, under the same id.
pub(crate) async fn run_now(
    operator: &Operator,
    lane: Option<&str>,
    id: &str,
    limits: LookLimits,
) -> Result<String, Failure> {
    let snapshot = Snapshot::take(operator).await?;
    let queues = queues(operator, &snapshot, lane, TaskState::Later)?;
    let connection = operator.connect().await?;
    let config = PublisherConfig { confirm_timeout: CONFIRM_TIMEOUT, ..PublisherConfig::default() };
    let publisher = Publisher::new(operator.broker.clone(), config);
    let mut found = None;
    for queue in queues {
        allowed(&connection, &queue.name, limits).await?;
        if move_to_lane(operator, &connection, &publisher, &queue, id).await? {
            found = Some(queue.lane);
            break;
        }
    }
    publisher.close().await;
    Operator::leave(connection).await;
    found.ok_or_else(|| Failure::new(Exit::Failed, format_args!("no retry queue has a task {id:?}")))
}

/// Moves the first message of a queue with this id. Returns whether there is one.
async fn move_to_lane(
    operator: &Operator,
    connection: &Connection,
    publisher: &Publisher,
    queue: &WaitingQueue,
    id: &str,
) -> Result<bool, Failure> {
    let place = LaneQueues::new(&operator.names, &queue.lane, operator.settings.lanes.shards(&queue.lane));
    let mut walk = QueueWalk::start(connection, &queue.name, u64::MAX).await?;
    let mut sent = None;
    // To the end: a walk that ends earlier would change the order of the queue.
    let walked = async {
        while let Some(delivery) = walk.next().await? {
            let is_wanted = delivery.properties.message_id().as_ref().is_some_and(|it| it.as_str() == id);
            if sent.is_some() || !is_wanted {
                continue;
            }
            let tag = delivery.delivery_tag;
            waits::begin_confirm(publisher, "the copy of the task; the task remains until then");
            let confirmed = publisher.publish(copy(place, &delivery.properties, delivery.data, id)).await;
            let is_confirmed = confirmed.is_ok();
            sent = Some(confirmed);
            if is_confirmed {
                walk.remove(tag).await?;
            }
        }
        walk.finish().await.map(drop)
    };
    match (walked.await, sent) {
        (Err(failure), Some(Ok(()))) => {
            let problem =
                format!("{failure}; the task may also remain in {:?}, under the same id", queue.name);
            Err(Failure::new(failure.exit, problem))
        }
        (Err(failure), _) => Err(failure),
        (Ok(()), Some(confirmed)) => Ok(confirmed.map(|()| true)?),
        (Ok(()), None) => Ok(false),
    }
}

/// The task without its due time, for the queue of its lane.
fn copy(place: LaneQueues<'_>, original: &BasicProperties, body: Vec<u8>, id: &str) -> Message {
    let copied = Copied::verbatim(original, "", SystemTime::now()).without(header::NOT_BEFORE);
    let copied = if place.is_sharded() { copied.keyed(id) } else { copied };
    Message { target: Target::lane(place), properties: copied.into_properties(), body: body.into() }
}

#[cfg(test)]
mod tests {
    use garenne_protocol::topology::Names;
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;

    #[test]
    fn the_copy_is_due_now_and_is_the_same_task_otherwise() {
        let names = Names::new("garenne");
        let mut marks = FieldTable::default();
        for (name, value) in [(header::NOT_BEFORE, i64::MAX), (header::ATTEMPT, 2), ("x-delivery-count", 7)] {
            marks.insert(name.into(), AMQPValue::LongLongInt(value));
        }
        let original = BasicProperties::default().with_message_id("t".into()).with_headers(marks);
        let message = copy(LaneQueues::new(&names, "fast", 1), &original, b"{}".to_vec(), "t");
        let headers = message.properties.headers();
        let number = |name| header::get(headers, name).and_then(header::integer);
        assert_eq!((number(header::NOT_BEFORE), number(header::ATTEMPT)), (None, Some(2)));
        assert_eq!((number("x-delivery-count"), number(header::KEY)), (None, None));
        assert_eq!(message.properties.message_id().as_ref().unwrap().as_str(), "t");
        assert_eq!((message.target.exchange.as_str(), &*message.body), ("", &b"{}"[..]));
        let sharded = copy(LaneQueues::new(&names, "fast", 2), &original, Vec::new(), "t");
        let key = header::get(sharded.properties.headers(), header::KEY).and_then(header::text);
        assert_eq!(key.as_deref(), Some("t"));
    }
}
