//! Makes the copy of a dead letter or an unroutable message that a replay publishes.

use std::{collections::BTreeSet, time::SystemTime};

use garenne_amqp::{Message, Target};
use garenne_common::{config::Lane, exit::Failure};
use garenne_operator::{
    dead::{DeadLetter, FIELD_HEADERS, HeldQueue, first_routing_key},
    operator::Operator,
};
use garenne_protocol::{
    task::{Copied, DeadReason, FOREIGN_KIND, Source, epoch_ms, foreign_properties, header, is_foreign_copy},
    topology::{LaneExchange, LaneQueues, MOST_SHARDS},
};
use lapin::BasicProperties;
use uuid::Uuid;

use crate::topology::find_differences;

/// Further headers that only workers and this program write. Workers ignore them in messages from the tasks exchange,
/// to which any publisher has access.
const WORKER_ONLY: [&str; 5] =
    [header::EXPIRES_AT, header::USER_ID, header::DEPTH, header::PARENT, header::REPLAYED_AT];

/// The copy of a message of `queue`. The error says why it cannot be published.
pub(super) fn copy(
    operator: &Operator,
    queue: HeldQueue,
    unbound: &UnboundLanes,
    letter: &DeadLetter,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Result<Message, String> {
    match queue {
        HeldQueue::Dead => task_again(operator, letter, properties, body),
        HeldQueue::Unroutable => published_again(operator, unbound, letter, properties, body),
    }
}

/// Lanes of which a binding to the tasks exchange is missing on the broker. Messages for them would return.
#[derive(Debug, Default)]
pub(super) struct UnboundLanes(BTreeSet<String>);

impl UnboundLanes {
    /// Asks the broker, if the messages go to the tasks exchange. Only the management API lists bindings: without it, all
    /// lanes count as bound.
    pub(super) async fn find(operator: &Operator, queue: HeldQueue) -> Result<Self, Failure> {
        if queue == HeldQueue::Dead || operator.management.is_none() {
            return Ok(Self::default());
        }
        let (tasks, missing) = (operator.names.tasks(), find_differences(operator).await?);
        let missing: Vec<_> = missing.iter().filter(|it| it.what == "binding" && it.is_missing()).collect();
        let is_unbound = |lane: &&str| {
            let shards = operator.settings.lanes.shards(lane);
            let ends =
                [operator.names.shards(lane), LaneQueues::new(&operator.names, lane, shards).entry().1];
            let begins = ends.map(|end| format!("{tasks} -> {end} ("));
            missing.iter().any(|it| begins.iter().any(|begin| it.name.starts_with(begin)))
        };
        let lanes = operator.settings.lanes.defined().map(|(lane, _)| lane).filter(is_unbound);
        Ok(Self(lanes.map(str::to_owned).collect()))
    }
}

/// Whether a lane of the settings takes a copy. One that goes to the tasks exchange may be unroutable; an unroutable message came
/// from there.
pub(super) fn is_for_lane(operator: &Operator, queue: HeldQueue, copy: &Message) -> bool {
    queue == HeldQueue::Unroutable || copy.target.exchange != operator.names.tasks()
}

/// The message as its publisher sent it, for the tasks exchange. It goes nowhere else: workers trust what comes to a
/// lane's queue directly. Fails if it would return, because no lane takes its routing key or the binding is missing.
fn published_again(
    operator: &Operator,
    unbound: &UnboundLanes,
    message: &DeadLetter,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Result<Message, String> {
    let (names, key) = (&operator.names, message.routing_key.clone());
    match operator.settings.lanes.taking(&key) {
        Some(lane) if unbound.0.contains(lane) => {
            let repair = "`garenne topology apply` creates it";
            return Err(format!("a binding of lane {lane:?} is missing on the broker: {repair}"));
        }
        Some(_) => {}
        None => return Err(format!("no lane of the settings (--config) takes the routing key {key:?}")),
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
fn task_again(
    operator: &Operator,
    letter: &DeadLetter,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Result<Message, String> {
    let Operator { names, settings, .. } = operator;
    if let Some(lane) = expired_in(operator, letter, properties) {
        return Ok(foreign_again(operator, lane, properties, body));
    }
    let has_maps = |lane: &str| settings.lanes.defined().any(|(name, it)| name == lane && it.is_mapped());
    let is_from_lane = letter.kind == FOREIGN_KIND && letter.lane.as_deref().is_some_and(has_maps);
    if letter.reason == DeadReason::Unmapped.as_str() && !is_from_lane {
        let problem = "no lane of the settings (--config) has maps for it; correct the map and use \
                       `garenne-producer map publish`";
        return Err(problem.to_owned());
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

/// The lane with maps from whose queue the broker itself dead-lettered a message before a worker received it. What the
/// sender wrote into the message is not trusted.
fn expired_in<'a>(
    operator: &'a Operator,
    letter: &DeadLetter,
    properties: &BasicProperties,
) -> Option<&'a str> {
    let exchange = header::get(properties.headers(), "x-first-death-exchange").and_then(header::text);
    let is_copy = exchange.as_deref() == Some("") && is_foreign_copy(properties);
    let queue = letter.queue.as_deref().filter(|_| letter.by_broker && !is_copy)?;
    let of_queue = |(name, lane): &(&str, &Lane)| lane.is_mapped() && operator.names.lane(name) == queue;
    operator.settings.lanes.defined().find(of_queue).map(|(name, _)| name)
}

/// A foreign message for the queue of its lane, as a worker would have received it.
fn foreign_again(operator: &Operator, lane: &str, properties: &BasicProperties, body: Vec<u8>) -> Message {
    let Operator { names, settings, .. } = operator;
    let key = first_routing_key(properties.headers()).unwrap_or_default();
    let is_mqtt = settings
        .lanes
        .defined()
        .any(|(name, it)| name == lane && it.foreign_exchange() == Some(LaneExchange::Mqtt));
    let topic = is_mqtt.then(|| Source::mqtt_topic(&key));
    let source = topic.as_deref().map_or(Source::RoutingKey(&key), Source::Topic);
    let now = SystemTime::now();
    let read = foreign_properties(properties, source, now);
    let copied = Copied::verbatim(&read, FOREIGN_KIND, now).with(header::REPLAYED_AT, epoch_ms(now));
    let properties = copied.into_properties().with_message_id(new_id(properties, &body).into());
    Message { target: Target::lane(LaneQueues::new(names, lane, 1)), properties, body: body.into() }
}

/// The lane of the copy: the original one if it still has a binding for the kind, else the one that has, else the
/// original one, else the catch-all lane.
fn lane_of(operator: &Operator, letter: &DeadLetter, kind: &str) -> Option<String> {
    let Operator { names, settings, ladder, .. } = operator;
    let lanes: Vec<_> = settings.lanes.defined().collect();
    let has_binding = |name: &str| lanes.iter().any(|(lane, it)| *lane == name && it.is_bound_to(kind));
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
mod tests;
