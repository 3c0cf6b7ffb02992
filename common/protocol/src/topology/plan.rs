//! Everything that must exist on the broker, as data.

use std::{collections::BTreeMap, time::Duration};

use super::{
    delay::Delay,
    ladder::Ladder,
    lane_queues::LaneQueues,
    lane_spec::{LaneSpec, MOST_SHARDS},
    names::Names,
    route::{Binding, Destination, Route, lane_routes},
    version::BrokerVersion,
};
use crate::task::header;

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// By pattern.
    Topic,
    /// To every bound queue.
    Fanout,
    /// To one of the bound queues, the same for each value of a header. A plugin that ships with RabbitMQ.
    ConsistentHash,
}

impl ExchangeKind {
    /// The broker's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Fanout => "fanout",
            Self::ConsistentHash => "x-consistent-hash",
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

/// A queue that no lane of these settings has, and a lane with more shards had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The queue.
    pub queue: String,
    /// The lane it belonged to.
    pub lane: String,
    /// The lane's shards by these settings.
    pub shards: u16,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Exchanges, in an order in which they can be declared.
    pub exchanges: Vec<Exchange>,
    /// Queues and streams.
    pub queues: Vec<Queue>,
    /// Bindings to make and to undo, in an order in which each task has exactly one way all the time.
    pub routes: Vec<Route>,
    /// Queues that may be there from settings with more shards. What they hold nobody consumes.
    pub leftovers: Vec<Leftover>,
    /// Rungs that may be there from a lane's other shape. They empty themselves.
    pub former_rungs: Vec<String>,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long directives are kept: as long as a task can be put off.
pub const DIRECTIVES_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long workers' starts and ends are kept; a living worker repeats its start more often.
pub const LIFECYCLE_KEPT: Duration = DAY;
/// Streams are truncated by whole segments; small ones, because records are few.
const SEGMENT_BYTES: i64 = 1_000_000;

impl Topology {
    /// What a fleet with these lanes needs on a broker of this version.
    pub fn new(names: &Names, lanes: &[LaneSpec], ladder: &Ladder, version: BrokerVersion) -> Self {
        let exchange = |name: String, kind| Exchange { name, kind, arguments: BTreeMap::new() };
        let mut tasks = exchange(names.tasks(), ExchangeKind::Topic);
        tasks.arguments.insert("alternate-exchange", Arg::Text(names.unroutable()));
        let mut exchanges = vec![
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
            dead_lettered(quorum(names.quarantine(), version), &names.dead(), None),
            quarantine_rung(names, version),
            stream(names.directives(), DIRECTIVES_KEPT),
            stream(names.lifecycle(), LIFECYCLE_KEPT),
        ];
        let bound = |exchange, queue, key: &str| {
            Route::Bind(Binding { exchange, to: Destination::Queue(queue), key: key.to_owned() })
        };
        let mut routes = vec![
            bound(names.dead(), names.dead(), "#"),
            bound(names.unroutable(), names.unroutable(), "#"),
            bound(names.control(), names.directives(), "stop.#"),
            bound(names.events(), names.lifecycle(), "life.#"),
        ];
        let (mut leftovers, mut former_rungs) = (Vec::new(), Vec::new());
        for lane in lanes {
            let LaneSpec { name, shards, .. } = lane;
            if *shards > 1 {
                exchanges.push(divider(names, name));
            }
            for shard in 0..*shards {
                queues.push(lane_queue(names, lane, shard, version));
            }
            queues.extend(ladder.rungs().iter().map(|&delay| rung(names, lane, delay, version)));
            routes.extend(lane_routes(names, lane));
            leftovers.extend((*shards..MOST_SHARDS).map(|shard| Leftover {
                queue: names.shard(name, shard),
                lane: name.clone(),
                shards: *shards,
            }));
            let other = LaneQueues::new(names, name, if *shards > 1 { 1 } else { MOST_SHARDS });
            former_rungs.extend(ladder.rungs().iter().map(|&delay| other.rung(delay)));
        }
        Self { exchanges, queues, routes, leftovers, former_rungs }
    }

    /// The bindings that should be there.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.routes.iter().filter_map(|route| match route {
            Route::Bind(binding) => Some(binding),
            Route::Unbind(_) => None,
        })
    }

    /// The bindings that must not be there.
    pub fn unbound(&self) -> impl Iterator<Item = &Binding> {
        self.routes.iter().filter_map(|route| match route {
            Route::Bind(_) => None,
            Route::Unbind(binding) => Some(binding),
        })
    }
}

/// What divides a lane's tasks among its queues. Where they all are gone, what comes is as unroutable as
/// with one.
fn divider(names: &Names, lane: &str) -> Exchange {
    let arguments = BTreeMap::from([
        ("hash-header", Arg::Text(header::KEY.into())),
        ("alternate-exchange", Arg::Text(names.unroutable())),
    ]);
    Exchange { name: names.shards(lane), kind: ExchangeKind::ConsistentHash, arguments }
}

fn lane_queue(names: &Names, lane: &LaneSpec, shard: u16, version: BrokerVersion) -> Queue {
    let mut queue = dead_lettered(quorum(names.shard(&lane.name, shard), version), &names.dead(), None);
    if let Some(timeout) = lane.consumer_timeout {
        let ms = timeout.as_millis().try_into().unwrap_or(i64::MAX);
        queue.arguments.insert("x-consumer-timeout", Arg::Number(ms));
    }
    // The first is there already where a lane grows, and its arguments cannot be changed.
    if shard > 0 {
        queue.arguments.insert("x-queue-leader-locator", Arg::Text("balanced".into()));
    }
    queue
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
fn rung(names: &Names, lane: &LaneSpec, delay: Delay, version: BrokerVersion) -> Queue {
    let place = LaneQueues::new(names, &lane.name, lane.shards);
    let (exchange, key) = place.entry();
    let mut queue = dead_lettered(quorum(place.rung(delay), version), &exchange, Some(key));
    queue.arguments.insert("x-message-ttl", Arg::Number(delay.as_millis().try_into().unwrap_or(i64::MAX)));
    queue
}

/// Copies wait here before they enter the quarantine: their originals are acked first, and handing them on is no
/// hot loop.
fn quarantine_rung(names: &Names, version: BrokerVersion) -> Queue {
    let mut queue = dead_lettered(quorum(names.quarantine_retry(), version), "", Some(names.quarantine()));
    let delay = Names::QUARANTINE_DELAY.as_millis().try_into().unwrap_or(i64::MAX);
    queue.arguments.insert("x-message-ttl", Arg::Number(delay));
    queue
}

/// `max_age` in whole days.
fn stream(name: String, max_age: Duration) -> Queue {
    let max_age = format!("{}D", max_age.as_secs() / DAY.as_secs());
    Queue {
        name,
        arguments: BTreeMap::from([
            ("x-queue-type", Arg::Text("stream".into())),
            ("x-max-age", Arg::Text(max_age)),
            ("x-stream-max-segment-size-bytes", Arg::Number(SEGMENT_BYTES)),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_records_as_long_as_their_readers_count_on() {
        let names = Names::new("p");
        let version = "4.0.5".parse().unwrap();
        let topology = Topology::new(&names, &[], &Ladder::default(), version);
        let argument = |queue: String, name: &str| {
            let queue = topology.queues.iter().find(|it| it.name == queue).unwrap();
            queue.arguments[name].clone()
        };
        assert_eq!(argument(names.directives(), "x-max-age"), Arg::Text("30D".into()));
        assert_eq!(argument(names.lifecycle(), "x-max-age"), Arg::Text("1D".into()));
        assert_eq!((DIRECTIVES_KEPT, LIFECYCLE_KEPT), (30 * DAY, DAY));
    }

    #[test]
    fn what_is_handed_on_returns_to_the_quarantine_after_a_while() {
        let names = Names::new("p");
        let queue = quarantine_rung(&names, "4.0.5".parse().unwrap());
        assert_eq!(queue.name, "p.retry.quarantine.1s");
        assert_eq!(queue.arguments["x-message-ttl"], Arg::Number(1000));
        assert_eq!(queue.arguments["x-dead-letter-exchange"], Arg::Text(String::new()));
        assert_eq!(queue.arguments["x-dead-letter-routing-key"], Arg::Text("p.quarantine".into()));
        assert_eq!(queue.arguments["x-dead-letter-strategy"], Arg::Text("at-least-once".into()));
    }
}
