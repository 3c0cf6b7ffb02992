//! Publishes a dead letter with another payload under a new id, and removes the letter once the copy is confirmed.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::PathBuf,
};

use clap::Args;
use garenne_amqp::{Publisher, PublisherConfig};
use garenne_common::{
    exit::{Exit, Failure},
    stdout,
};
use garenne_operator::{
    dead::{DeadLetter, HeldQueue},
    operator::Operator,
    queues::QueueWalk,
    waits,
};
use garenne_protocol::{
    task::{TaskId, header},
    topology::LaneQueues,
};
use lapin::{BasicProperties, message::Delivery};
use serde::Serialize;
use serde_json::{Value, json};

use super::copy::{UnboundLanes, copy};
use crate::audit_log::{audited, command_line};

/// `garenne dead edit`.
#[derive(Args, Clone, Debug)]
pub struct EditArgs {
    /// The letter's task id
    #[arg(value_name = "ID")]
    pub id: String,
    /// File with the new payload; - reads the standard input
    #[arg(long, value_name = "FILE")]
    pub payload: PathBuf,
}

/// The copy of a letter that was edited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EditedLetter {
    /// The new task's id.
    pub(crate) id: String,
    pub(crate) kind: String,
    /// The exchange and the routing key it was published with.
    pub(crate) to: String,
    /// Other letters with the same id. They remain.
    pub(crate) others: usize,
}

/// Runs `garenne dead edit`.
pub(super) async fn run(operator: &Operator, EditArgs { id, payload }: EditArgs) -> Result<Exit, Failure> {
    let mut body = Vec::new();
    let file = payload.display();
    let unreadable = |error: io::Error| Failure::new(Exit::Usage, format_args!("--payload {file}: {error}"));
    match payload.as_os_str() == "-" {
        true => io::stdin().read_to_end(&mut body).map_err(unreadable)?,
        false => {
            std::fs::File::open(&payload).and_then(|mut it| it.read_to_end(&mut body)).map_err(unreadable)?
        }
    };
    let record = edit_record(&id, body.len());
    let editing = replay_edited(operator, &id, body);
    let done = audited(operator, command_line(), EDIT, record, editing, |it| json!(it)).await?;
    stdout::print_line(format_args!("replayed {id} with another payload as {}, to {}", done.id, done.to))?;
    if done.others > 0 {
        stdout::print_line(format_args!("{} older letters with the same id remain", done.others))?;
    }
    Ok(Exit::Done)
}

/// The command's name in its records.
pub(crate) const EDIT: &str = "dead.edit";

/// The arguments of the command in its records. Payloads are not recorded.
pub(crate) fn edit_record(id: &str, bytes: usize) -> Value {
    json!({ "id": id, "bytes": bytes })
}

/// Publishes the newest letter with an id again, with this payload and a new id. The letter is removed after the broker has
/// confirmed the copy, else it stays. The payload must fit the letter's content type.
pub(crate) async fn replay_edited(
    operator: &Operator,
    id: &str,
    payload: Vec<u8>,
) -> Result<EditedLetter, Failure> {
    let connection = operator.connect().await?;
    let mut walk = QueueWalk::start(&connection, &HeldQueue::Dead.name(&operator.names), u64::MAX).await?;
    let (mut newest, mut others) = (None, 0);
    while let Some(delivery) = walk.next().await? {
        let letter = HeldQueue::Dead.read(&delivery);
        if letter.id.as_deref() == Some(id) {
            others += usize::from(newest.replace((letter, delivery)).is_some());
        }
    }
    let published = match newest {
        None => Err(Failure::new(Exit::Failed, format_args!("no dead letter has the id {id:?}"))),
        Some((letter, delivery)) => {
            let tag = delivery.delivery_tag;
            publish(operator, &letter, delivery, payload).await.map(|edited| (tag, edited))
        }
    };
    let result = match published {
        Ok((tag, edited)) => {
            walk.remove(tag).await?;
            Ok(EditedLetter { others, ..edited })
        }
        Err(failure) => Err(failure),
    };
    walk.finish().await?;
    Operator::leave(connection).await;
    result
}

async fn publish(
    operator: &Operator,
    letter: &DeadLetter,
    delivery: Delivery,
    payload: Vec<u8>,
) -> Result<EditedLetter, Failure> {
    let properties = renamed(&delivery.properties);
    check_payload(&properties, &payload).map_err(|problem| Failure::new(Exit::Usage, problem))?;
    let message = copy(operator, HeldQueue::Dead, &UnboundLanes::default(), letter, &properties, payload)
        .map_err(|problem| Failure::new(Exit::Failed, problem))?;
    let id = message.properties.message_id().as_ref().map_or_else(String::new, ToString::to_string);
    let to = lane_of(operator, &message.target.exchange, &message.target.routing_key);
    let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
    waits::begin_confirm(&publisher, "the copy; the letter stays until then");
    let sent = publisher.publish(message).await;
    publisher.close().await;
    sent.map_err(|error| {
        let failure = Failure::from(error);
        Failure::new(
            failure.exit,
            format_args!("{failure}; the letter stays, and a copy has the id {id} if it exists"),
        )
    })?;
    Ok(EditedLetter { id, kind: letter.kind.clone(), to, others: 0 })
}

/// The lane behind an address, else the exchange.
fn lane_of(operator: &Operator, exchange: &str, routing_key: &str) -> String {
    let lanes = &operator.settings.lanes;
    let has_entry = |lane: &str| {
        let (of_lane, key) = LaneQueues::new(&operator.names, lane, lanes.shards(lane)).entry();
        of_lane == exchange && (!exchange.is_empty() || key == routing_key)
    };
    let lane = lanes.defined().map(|(name, _)| name).find(|name| has_entry(name));
    lane.map_or_else(|| format!("exchange {exchange}"), |lane| format!("lane {lane}"))
}

/// The properties with a new id. A reply still names the task by its old id.
fn renamed(properties: &BasicProperties) -> BasicProperties {
    let mut renamed = properties.clone().with_message_id(TaskId::random().as_str().into());
    // The checkpoint is of the work on the old payload.
    if let Some(headers) = properties.headers() {
        let kept = headers.inner().iter().filter(|(name, _)| name.as_str() != header::CHECKPOINT);
        let kept: BTreeMap<_, _> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        renamed = renamed.with_headers(kept.into());
    }
    if let (Some(_), None, Some(id)) =
        (properties.reply_to(), properties.correlation_id(), properties.message_id())
    {
        renamed = renamed.with_correlation_id(id.clone());
    }
    renamed
}

/// Checks that a payload that says it is JSON is some.
fn check_payload(properties: &BasicProperties, payload: &[u8]) -> Result<(), String> {
    let content_type = properties.content_type().as_ref().map_or("application/json", |it| it.as_str());
    let is_json = content_type == "application/json" || content_type.ends_with("+json");
    match serde_json::from_slice::<serde::de::IgnoredAny>(payload) {
        Err(error) if is_json => Err(format!("the payload is not JSON ({content_type}): {error}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use garenne_operator::settings::FleetSettings;
    use garenne_protocol::amqp::FieldTable;

    use super::*;

    #[test]
    fn a_payload_must_be_json_if_the_letter_says_so() {
        let plain = BasicProperties::default();
        assert_eq!(check_payload(&plain, b" {\"a\": 1e400}\n"), Ok(()), "the value is not read");
        let problem = check_payload(&plain, b"{\n\"a\" 1}").unwrap_err();
        assert_eq!(problem, "the payload is not JSON (application/json): expected `:` at line 2 column 5");
        assert!(check_payload(&plain, b"").is_err() && check_payload(&plain, b"\xff").is_err());
        let typed = |text: &str| BasicProperties::default().with_content_type(text.into());
        assert!(check_payload(&typed("application/senml+json"), b"[").is_err());
        assert_eq!(check_payload(&typed("text/csv"), b"a;b"), Ok(()));
    }

    #[test]
    fn an_edited_letter_has_a_new_id_and_replies_name_the_old_one() {
        let old = BasicProperties::default().with_message_id("old".into());
        let (one, other) = (renamed(&old), renamed(&old));
        assert!(one.message_id() != old.message_id() && one.message_id() != other.message_id());
        assert_eq!(one.correlation_id(), &None);
        let mut headers = FieldTable::default();
        headers.insert(header::CHECKPOINT.into(), header::long("7"));
        headers.insert(header::GROUP.into(), header::long("g"));
        let worked_on = renamed(&old.clone().with_headers(headers));
        let kept = worked_on.headers().as_ref().unwrap().inner();
        assert_eq!(kept.keys().map(|name| name.as_str()).collect::<Vec<_>>(), [header::GROUP]);
        let with_reply = old.with_reply_to("answers".into());
        assert_eq!(renamed(&with_reply).correlation_id().as_ref().unwrap().as_str(), "old");
        let correlated = with_reply.with_correlation_id("mine".into());
        assert_eq!(renamed(&correlated).correlation_id().as_ref().unwrap().as_str(), "mine");
    }

    #[test]
    fn the_lane_of_a_copy_is_named() {
        let operator = Operator::new(FleetSettings::default()).unwrap();
        assert_eq!(lane_of(&operator, "", "garenne.tasks.slow"), "lane slow");
        assert_eq!(lane_of(&operator, "garenne.tasks", "a.b"), "exchange garenne.tasks");
    }
}
