//! Messages that wait for an operator: dead letters, and messages that no lane's bindings matched.

mod dead_letter;
mod held_queue;

use std::collections::HashMap;

use garenne_common::exit::Failure;

pub use dead_letter::{
    BROKER_REASONS, DeadLetter, FIELD_HEADERS, UNKNOWN, as_rfc3339, first_routing_key, rfc3339,
};
pub use held_queue::HeldQueue;

use crate::{operator::Operator, queues::QueueWalk};

/// The reason of each task in the dead-letter queue, by id.
pub async fn reasons(operator: &Operator) -> Result<HashMap<String, String>, Failure> {
    let connection = operator.connect().await?;
    let mut walk = QueueWalk::start(&connection, &operator.names.dead(), u64::MAX).await?;
    let mut reasons = HashMap::new();
    while let Some(delivery) = walk.next().await? {
        let letter = HeldQueue::Dead.read(&delivery);
        reasons.extend(letter.id.map(|id| (id, letter.reason)));
    }
    walk.finish().await?;
    Operator::leave(connection).await;
    Ok(reasons)
}
