//! Looks at the messages of a queue, so that no worker suspects a task because of it.

use std::time::SystemTime;

use garenne_common::exit::Failure;
use garenne_operator::{
    operator::Operator,
    queues::{LookLimits, Seen, look},
};
use garenne_protocol::{
    task::{Directive, epoch_ms},
    topology::MOST_SHARDS,
};
use lapin::Connection;

use crate::directives::publish_directive;

/// Passes each message of a queue to `visit`. All of them are back when this returns.
///
/// Before RabbitMQ 4.3, the broker counts each look as a redelivery of the messages. Workers learn of a look at a lane's
/// queue before it begins, and do not count it. A message of a retry queue begins with a count of 0 in its lane.
pub(crate) async fn look_at(
    operator: &Operator,
    connection: &Connection,
    queue: &str,
    limits: LookLimits,
    visit: impl FnMut(Seen<'_>),
) -> Result<(), Failure> {
    let tell_workers = async {
        match lane_of(operator, queue) {
            Some(lane) if operator.broker.version().await?.counts_returns() => {
                let look = Directive::Look { look: lane.to_owned(), at: epoch_ms(SystemTime::now()) };
                publish_directive(operator, &look).await
            }
            _ => Ok(()),
        }
    };
    look(connection, queue, limits, tell_workers, visit).await
}

/// The lane that a queue belongs to. A retry queue belongs to none.
fn lane_of<'o>(operator: &'o Operator, queue: &str) -> Option<&'o str> {
    let owns = |lane: &str| (0..MOST_SHARDS).any(|shard| operator.names.shard(lane, shard) == queue);
    operator.settings.lanes.defined().map(|(lane, _)| lane).find(|lane| owns(lane))
}
