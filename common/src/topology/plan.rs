//! Everything that must exist on the broker, as data.

use std::{collections::BTreeMap, time::Duration};

use crate::config::Lanes;

use super::{delay::Delay, ladder::Ladder, names::Names, version::BrokerVersion};

/// A lane as the topology sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The lane's name.
    pub name: String,
    /// Topic patterns whose tasks it takes.
    pub bindings: Vec<String>,
    /// How long the broker lets a delivery stay unsettled; the broker's own default when absent.
    pub consumer_timeout: Option<Duration>,
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// By pattern.
    Topic,
    /// To every bound queue.
    Fanout,
}

impl ExchangeKind {
    /// The broker's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Fanout => "fanout",
        }
    }
}

/// The value of a declaration argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Text.
    Text(String),
    /// A whole number.
    Number(i64),
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Arguments.
    pub arguments: BTreeMap<&'static str, Arg>,
}

/// A durable queue or stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Arguments, the type among them.
    pub arguments: BTreeMap<&'static str, Arg>,
}

/// A binding of a queue to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// From.
    pub exchange: String,
    /// To.
    pub queue: String,
    /// The pattern.
    pub key: String,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Exchanges, in an order in which they can be declared.
    pub exchanges: Vec<Exchange>,
    /// Queues and streams.
    pub queues: Vec<Queue>,
    /// Bindings.
    pub bindings: Vec<Binding>,
}

impl LaneSpec {
    /// Every lane there are settings for: a process that works on some of them still declares all,
    /// so that what it may put off or hand on has somewhere to go.
    pub fn all(lanes: &Lanes) -> Vec<Self> {
        lanes
            .defined()
            .map(|(name, lane)| Self {
                name: name.to_owned(),
                bindings: lane.bindings.clone(),
                consumer_timeout: lane.consumer_timeout,
            })
            .collect()
    }
}

/// How long stop orders are kept: as long as a task can be put off (30 days).
const STOPS_MAX_AGE: &str = "30D";
/// How long a worker's unclean death stays evidence.
const LIVES_MAX_AGE: &str = "1D";
/// Streams are truncated by whole segments; small ones, because records are few.
const SEGMENT_BYTES: i64 = 1_000_000;

impl Topology {
    /// What a fleet with these lanes needs on a broker of this version.
    pub fn new(names: &Names, lanes: &[LaneSpec], ladder: &Ladder, version: BrokerVersion) -> Self {
        let exchange = |name: String, kind| Exchange { name, kind, arguments: BTreeMap::new() };
        let mut tasks = exchange(names.tasks(), ExchangeKind::Topic);
        tasks.arguments.insert("alternate-exchange", Arg::Text(names.unroutable()));
        let exchanges = vec![
            exchange(names.unroutable(), ExchangeKind::Fanout),
            exchange(names.dead(), ExchangeKind::Fanout),
            tasks,
            exchange(names.results(), ExchangeKind::Topic),
            exchange(names.control(), ExchangeKind::Topic),
            exchange(names.events(), ExchangeKind::Topic),
        ];

        let mut queues = vec![
            quorum(names.dead(), version),
            quorum(names.unroutable(), version),
            dead_lettered(quorum(names.suspect(), version), &names.dead(), None),
            stream(names.stops(), STOPS_MAX_AGE),
            stream(names.lives(), LIVES_MAX_AGE),
        ];
        let mut bindings = vec![
            Binding { exchange: names.dead(), queue: names.dead(), key: "#".into() },
            Binding { exchange: names.unroutable(), queue: names.unroutable(), key: "#".into() },
            Binding { exchange: names.control(), queue: names.stops(), key: "stop.#".into() },
            Binding { exchange: names.events(), queue: names.lives(), key: "life.#".into() },
        ];
        for lane in lanes {
            let mut queue = dead_lettered(quorum(names.lane(&lane.name), version), &names.dead(), None);
            if let Some(timeout) = lane.consumer_timeout {
                let ms = timeout.as_millis().try_into().unwrap_or(i64::MAX);
                queue.arguments.insert("x-consumer-timeout", Arg::Number(ms));
            }
            queues.push(queue);
            queues.extend(ladder.rungs().iter().map(|&delay| rung(names, &lane.name, delay, version)));
            bindings.extend(lane.bindings.iter().map(|key| Binding {
                exchange: names.tasks(),
                queue: names.lane(&lane.name),
                key: key.clone(),
            }));
        }
        Self { exchanges, queues, bindings }
    }
}

fn quorum(name: String, version: BrokerVersion) -> Queue {
    let mut arguments = BTreeMap::from([("x-queue-type", Arg::Text("quorum".into()))]);
    if let Some(limit) = version.unlimited_delivery() {
        arguments.insert("x-delivery-limit", Arg::Number(limit));
    }
    Queue { name, arguments }
}

/// At-least-once dead-lettering needs all three arguments; with one missing the broker silently
/// falls back to at-most-once.
fn dead_lettered(mut queue: Queue, exchange: &str, key: Option<String>) -> Queue {
    queue.arguments.insert("x-dead-letter-exchange", Arg::Text(exchange.to_owned()));
    queue.arguments.insert("x-dead-letter-strategy", Arg::Text("at-least-once".into()));
    queue.arguments.insert("x-overflow", Arg::Text("reject-publish".into()));
    if let Some(key) = key {
        queue.arguments.insert("x-dead-letter-routing-key", Arg::Text(key));
    }
    queue
}

/// Messages leave a queue only at its head, so each delay has a queue of its own.
fn rung(names: &Names, lane: &str, delay: Delay, version: BrokerVersion) -> Queue {
    let mut queue = dead_lettered(quorum(names.retry(lane, delay), version), "", Some(names.lane(lane)));
    queue.arguments.insert("x-message-ttl", Arg::Number(delay.as_millis().try_into().unwrap_or(i64::MAX)));
    queue
}

fn stream(name: String, max_age: &str) -> Queue {
    Queue {
        name,
        arguments: BTreeMap::from([
            ("x-queue-type", Arg::Text("stream".into())),
            ("x-max-age", Arg::Text(max_age.into())),
            ("x-stream-max-segment-size-bytes", Arg::Number(SEGMENT_BYTES)),
        ]),
    }
}
