//! Makes the copy of a dead letter or an unroutable message that a replay publishes.

use std::time::SystemTime;

use garenne_amqp::{Message, Target};
use garenne_protocol::{
    task::{Copied, DeadReason, epoch_ms, header, matches_binding},
    topology::{LaneQueues, MOST_SHARDS},
};
use lapin::BasicProperties;
use uuid::Uuid;

use super::{
    dead_letter::{DeadLetter, FIELD_HEADERS},
    held_queue::HeldQueue,
};
use crate::operator::Operator;

/// Further headers that only workers and this program write. Workers ignore them in messages from the tasks exchange,
/// to which any publisher has access.
const WORKER_ONLY: [&str; 5] =
    [header::EXPIRES_AT, header::USER_ID, header::DEPTH, header::PARENT, header::REPLAYED_AT];

/// The copy of a message of `queue`.
///
/// # Errors
/// Why it cannot be published.
pub(super) fn copy(
    operator: &Operator,
    queue: HeldQueue,
    letter: &DeadLetter,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Result<Message, String> {
    match queue {
        HeldQueue::Dead => task_again(operator, letter, properties, body),
        HeldQueue::Unroutable => published_again(operator, letter, properties, body),
    }
}

/// The message as its publisher sent it, for the tasks exchange. It goes nowhere else: workers trust what comes to a
/// lane's queue directly.
///
/// # Errors
/// No lane takes its routing key, so that it would return.
fn published_again(
    operator: &Operator,
    message: &DeadLetter,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Result<Message, String> {
    let (names, key) = (&operator.names, message.routing_key.clone());
    if operator.settings.lanes.taking(&key).is_none() {
        return Err(format!("no lane of the settings (--config) takes the routing key {key:?}"));
    }
    let id = properties.message_id().as_ref().map(|id| id.as_str().to_owned());
    let id = id.unwrap_or_else(|| new_id(properties, &body));
    let mut copied = without_internal_headers(Copied::verbatim(properties, "", SystemTime::now()));
    // The delay begins again, so that the task never starts too early.
    if let Some(delay) = header::get(properties.headers(), header::DELAY_MS) {
        copied = copied.with(header::DELAY_MS, delay.clone());
    }
    let mut properties_again = copied.into_properties().with_message_id(id.into());
    if let Some(expiration) = properties.expiration() {
        properties_again = properties_again.with_expiration(expiration.clone());
    }
    Ok(Message {
        target: Target::exchange(names.tasks(), key),
        properties: properties_again,
        body: body.into(),
    })
}

/// Without the headers that only workers and this program write.
fn without_internal_headers(copied: Copied) -> Copied {
    let marks = FIELD_HEADERS.into_iter().chain(WORKER_ONLY).chain([header::NOT_BEFORE]);
    marks.fold(copied.unmarked(), Copied::without)
}

/// The task with attempts reset and earlier stop directives overridden, for the queue of its lane. If its lane is
/// unknown, it goes to the tasks exchange, where it may be unroutable.
///
/// # Errors
/// Why it cannot be published.
fn task_again(
    operator: &Operator,
    letter: &DeadLetter,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Result<Message, String> {
    let Operator { names, settings, .. } = operator;
    if letter.reason == DeadReason::Unmapped.as_str() {
        return Err("it is no task; correct the map and use `garenne-producer map publish`".to_owned());
    }
    let now = SystemTime::now();
    // Without a type, the kind is the first routing key, unless that is the dead-letter queue.
    let kind = if letter.kind == names.dead() { "" } else { &letter.kind };
    if kind.len() > 255 {
        return Err(format!("its kind has {} bytes, the limit is 255", kind.len()));
    }
    let copied = Copied::verbatim(properties, kind, now).unmarked().without(header::NOT_BEFORE);
    let mut copied = FIELD_HEADERS.into_iter().fold(copied, Copied::without);
    let expires_at = header::get(properties.headers(), header::EXPIRES_AT).and_then(header::integer);
    // An expired task that is replayed should run.
    let expires_at = expires_at.filter(|at| letter.reason != "expired" && *at > epoch_ms(now));
    if expires_at.is_none() {
        copied = copied.without(header::EXPIRES_AT);
    }
    let id = match properties.message_id() {
        Some(id) => id.as_str().to_owned(),
        None => new_id(properties, &body),
    };
    let lane = lane_of(operator, letter, kind);
    let target = match &lane {
        Some(lane) => {
            // A stopped task that is replayed should run.
            copied = copied.with(header::REPLAYED_AT, epoch_ms(now));
            let place = LaneQueues::new(names, lane, settings.lanes.shards(lane));
            copied = if place.is_sharded() { copied.keyed(&id) } else { copied };
            Target::lane(place)
        }
        None if kind.is_empty() => return Err("it has neither a kind nor a lane".to_owned()),
        None => {
            copied = WORKER_ONLY.into_iter().fold(copied, Copied::without);
            Target::exchange(names.tasks(), kind.to_owned())
        }
    };
    let mut properties = copied.into_properties().with_message_id(id.into());
    if let (None, Some(at)) = (&lane, expires_at) {
        properties = properties.with_expiration(at.saturating_sub(epoch_ms(now)).to_string().into());
    }
    Ok(Message { target, properties, body: body.into() })
}

/// The lane of the copy: the original one if it still has a binding for the kind, else the one that has, else the
/// original one, else the catch-all lane.
fn lane_of(operator: &Operator, letter: &DeadLetter, kind: &str) -> Option<String> {
    let Operator { names, settings, ladder, .. } = operator;
    let lanes: Vec<_> = settings.lanes.defined().collect();
    let has_binding = |name: &str| {
        lanes.iter().any(|(lane, it)| {
            *lane == name && it.bindings.iter().any(|binding| matches_binding(binding, kind))
        })
    };
    let owns = |lane: &str, queue: &str| {
        let is_rung = |&rung| names.retry(lane, rung) == queue || names.retry_shards(lane, rung) == queue;
        (0..MOST_SHARDS).any(|shard| names.shard(lane, shard) == queue) || ladder.rungs().iter().any(is_rung)
    };
    let named = lanes.iter().find(|(lane, _)| letter.lane.as_deref() == Some(*lane));
    let from = named.or_else(|| {
        let queue = letter.queue.as_deref()?;
        lanes.iter().find(|(lane, _)| owns(lane, queue))
    });
    let from = from.map(|(lane, _)| *lane);
    let catch_all = || settings.lanes.catch_all().filter(|_| !kind.is_empty());
    let bound = from.filter(|lane| has_binding(lane)).or_else(|| settings.lanes.bound_to(kind));
    let lane = bound.or(from).or_else(catch_all);
    lane.map(str::to_owned)
}

/// An id for a dead letter without one. The first half is a hash of the message, so that copies of equal messages can
/// be counted. The second half is random, so that each copy is a task of its own.
fn new_id(properties: &BasicProperties, body: &[u8]) -> String {
    let mut all = stable(properties).into_bytes();
    all.extend_from_slice(body);
    format!("{}-{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, &all).simple(), Uuid::now_v7().simple())
}

/// The properties as text, without the broker's delivery counters.
pub(super) fn stable(properties: &BasicProperties) -> String {
    let counts = |name: &str| ["x-delivery-count", "x-acquired-count"].contains(&name);
    let headers: std::collections::BTreeMap<_, _> = properties
        .headers()
        .iter()
        .flat_map(|headers| headers.inner())
        .filter(|(name, _)| !counts(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    format!("{:?}", properties.clone().with_headers(headers.into()))
}

#[cfg(test)]
mod tests {
    use garenne_common::config::{Lane, Lanes};
    use garenne_protocol::task::header::long;
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;
    use crate::settings::ConsoleConfig;

    fn properties(kind: &str, headers: &[(&str, AMQPValue)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        BasicProperties::default().with_message_id("7".into()).with_type(kind.into()).with_headers(table)
    }

    fn copied(properties: &BasicProperties) -> Result<Message, String> {
        // Without a catch-all lane.
        let all = Lanes::default();
        let bound = all.defined().filter(|(_, lane)| !lane.catch_all);
        let lanes = bound.map(|(name, lane)| (name.to_owned(), lane.clone())).collect();
        copied_with(properties, ConsoleConfig { lanes, ..ConsoleConfig::default() })
    }

    fn copied_with(properties: &BasicProperties, settings: ConsoleConfig) -> Result<Message, String> {
        let operator = Operator::new(settings).unwrap();
        let letter = DeadLetter::of("garenne.dead", properties, 2);
        copy(&operator, HeldQueue::Dead, &letter, properties, b"{}".to_vec())
    }

    fn target(properties: &BasicProperties) -> Result<(String, String), String> {
        copied(properties).map(|it| (it.target.exchange, it.target.routing_key))
    }

    fn to(exchange: &str, key: &str) -> Result<(String, String), String> {
        Ok((exchange.to_owned(), key.to_owned()))
    }

    #[test]
    fn a_copy_goes_to_the_queue_of_its_lane() {
        let from = |kind: &str, lane: &str| target(&properties(kind, &[(header::LANE, long(lane))]));
        assert_eq!(target(&properties("alert.notify", &[])), to("", "garenne.tasks.slow"));
        assert_eq!(from("alert.notify", "fast"), to("", "garenne.tasks.slow"));
        assert_eq!(from("unbound", "fast"), to("", "garenne.tasks.fast"));
        assert_eq!(from("alert.notify", "no-such-lane"), to("", "garenne.tasks.slow"));
        assert_eq!(
            target(&properties("unbound", &[("x-first-death-queue", long("garenne.retry.slow.5s"))])),
            to("", "garenne.tasks.slow")
        );
    }

    #[test]
    fn a_copy_of_an_unbound_kind_goes_to_the_catch_all_lane() {
        let key = |properties: &BasicProperties| {
            let copy = copied_with(properties, ConsoleConfig::default());
            copy.map(|copy| copy.target.routing_key)
        };
        assert_eq!(key(&properties("unbound", &[])).unwrap(), "garenne.tasks.default");
        let from_fast = properties("unbound", &[(header::LANE, long("fast"))]);
        assert_eq!(key(&from_fast).unwrap(), "garenne.tasks.fast");
        let without_kind = BasicProperties::default().with_message_id("7".into());
        assert_eq!(key(&without_kind).unwrap_err(), "it has neither a kind nor a lane");
    }

    #[test]
    fn a_copy_without_a_known_lane_goes_to_the_tasks_exchange_without_internal_headers() {
        let in_an_hour = epoch_ms(SystemTime::now()) + 3_600_000;
        let letter = properties(
            "unbound",
            &[
                (header::LANE, long("elsewhere")),
                (header::DEPTH, AMQPValue::LongUInt(3)),
                (header::EXPIRES_AT, AMQPValue::LongLongInt(in_an_hour)),
                ("mine", long("kept")),
            ],
        );
        assert_eq!(target(&letter), to("garenne.tasks", "unbound"));
        let copy = copied(&letter).unwrap();
        let headers = copy.properties.headers().as_ref().unwrap();
        let names: Vec<_> = headers.inner().keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["mine"]);
        let left: i64 = copy.properties.expiration().as_ref().unwrap().as_str().parse().unwrap();
        assert!((3_590_000..=3_600_000).contains(&left), "{left}");
    }

    #[test]
    fn a_dead_letter_that_cannot_be_published_has_a_reason() {
        let why = |properties: &BasicProperties| copied(properties).map(|_| ()).unwrap_err();
        assert_eq!(
            why(&BasicProperties::default().with_message_id("7".into())),
            "it has neither a kind nor a lane"
        );
        let death = |key: &str| {
            let mut death = FieldTable::default();
            death.insert("routing-keys".into(), AMQPValue::FieldArray(vec![long(key)].into()));
            let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
            let mut table = FieldTable::default();
            table.insert("x-death".into(), deaths);
            BasicProperties::default().with_headers(table)
        };
        assert_eq!(why(&death(&"k".repeat(256))), "its kind has 256 bytes, the limit is 255");
    }

    #[test]
    fn a_payload_that_no_map_takes_is_not_replayed_as_a_task() {
        let unmapped = properties("mqtt.message", &[(header::REASON, long("unmapped"))]);
        let why = copied_with(&unmapped, ConsoleConfig::default()).map(|_| ()).unwrap_err();
        assert!(why.contains("garenne-producer map publish"), "{why}");
    }

    #[test]
    fn headers_that_are_too_large_are_left_out_of_the_copy() {
        let large =
            properties("bench.noop", &[("large", long(&"x".repeat(131_000))), ("small", long("kept"))]);
        let copy = copied(&large).unwrap().properties;
        let headers = copy.headers().as_ref().unwrap().inner();
        assert!(headers.contains_key("small") && !headers.contains_key("large"), "{headers:?}");
        assert!(headers.contains_key(header::DROPPED) && headers.contains_key(header::DROPPED_BYTES));
    }

    #[test]
    fn copies_of_equal_messages_without_an_id_have_ids_with_an_equal_first_half() {
        let id = |count: u32, body: &[u8]| {
            let mut table = FieldTable::default();
            table.insert("x-delivery-count".into(), AMQPValue::LongUInt(count));
            new_id(&BasicProperties::default().with_headers(table), body)
        };
        let (first, again, other) = (id(1, b"{}"), id(2, b"{}"), id(1, b"[]"));
        assert_ne!(first, again);
        assert_eq!(first[..33], again[..33]);
        assert_ne!(first[..33], other[..33]);
    }

    #[test]
    fn an_unroutable_message_is_published_again_as_it_was_sent() {
        let lanes: Lanes = [("fast".to_owned(), Lane::bound_to(["import.#"]))].into_iter().collect();
        let operator = Operator::new(ConsoleConfig { lanes, ..ConsoleConfig::default() }).unwrap();
        let sent = properties(
            "other.kind",
            &[
                ("mine", long("kept")),
                (header::GROUP, long("import-7")),
                (header::DELAY_MS, AMQPValue::LongUInt(5)),
                (header::ATTEMPT, AMQPValue::LongUInt(3)),
                ("x-death", AMQPValue::FieldArray(Vec::new().into())),
            ],
        );
        let sent = sent.with_expiration("60000".into()).with_user_id("sender".into());
        let copied = |key: &str| {
            let message = DeadLetter::unroutable(key, &sent, 2);
            copy(&operator, HeldQueue::Unroutable, &message, &sent, b"{}".to_vec())
        };
        let copy = copied("import.csv").unwrap();
        let target = (copy.target.exchange.as_str(), copy.target.routing_key.as_str());
        assert_eq!(target, ("garenne.tasks", "import.csv"));
        let again = copy.properties;
        let headers = again.headers().as_ref().unwrap().inner();
        let names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["garenne-delay-ms", "garenne-group", "mine"]);
        assert_eq!(again.kind().as_ref().unwrap().as_str(), "other.kind");
        assert_eq!(again.message_id().as_ref().unwrap().as_str(), "7");
        assert_eq!((again.expiration(), again.user_id()), (&Some("60000".into()), &None));
        assert_eq!(
            copied("unbound").unwrap_err(),
            "no lane of the settings (--config) takes the routing key \"unbound\""
        );
    }
}
