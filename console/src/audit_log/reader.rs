//! Reads the records from the stream.

use std::time::Duration;

use garenne_amqp::unreadable;
use garenne_common::exit::Failure;
use garenne_operator::operator::Operator;
use garenne_protocol::audit::AuditRecord;
use lapin::{message::Delivery, types::AMQPValue};

use crate::stream_walk::{WalkTimeouts, walk_stream};

const TIMEOUTS: WalkTimeouts =
    WalkTimeouts { first_record: Duration::from_secs(2), last_chunk: Duration::from_millis(100) };

/// The records since `after` (milliseconds since 1970), in the order in which the broker has stored them, and the number
/// of messages that are no record of a command: a user that may publish to any queue can put them into the stream.
pub(super) async fn read(operator: &Operator, after: i64) -> Result<(Vec<AuditRecord>, usize), Failure> {
    let connection = operator.connect().await?;
    let (mut records, mut refused) = (Vec::new(), 0);
    let events = operator.names.events();
    let from = AMQPValue::Timestamp(u64::try_from(after / 1000).unwrap_or(0));
    let visit = |delivery: &Delivery| match record(delivery, &events) {
        Some(record) if record.at >= after => records.push(record),
        Some(_) => {}
        None => refused += 1,
    };
    walk_stream(&connection, &operator.names.audit(), from, TIMEOUTS, visit).await?;
    Operator::leave(connection).await;
    Ok((records, refused))
}

/// The record, if it came through the exchange of events, whose routing keys the broker checks, and from the user that it
/// names, which the broker checks too.
fn record(delivery: &Delivery, events: &str) -> Option<AuditRecord> {
    if unreadable(&delivery.properties).is_some() || delivery.exchange.as_str() != events {
        return None;
    }
    let record: AuditRecord = serde_json::from_slice(&delivery.data).ok()?;
    let user = delivery.properties.user_id().as_ref().map(|user| user.as_str());
    let genuine =
        record.actor.amqp_user.as_deref() == user && record.routing_key() == delivery.routing_key.as_str();
    genuine.then_some(record)
}
