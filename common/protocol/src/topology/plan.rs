//! The topology: the exchanges, queues, streams and bindings of a fleet, as data.

use std::{collections::BTreeMap, time::Duration};

use super::{
    celery::delayed_delivery,
    ladder::{Delay, Ladder},
    lane::{LaneExchange, LaneQueues, LaneSpec, MOST_SHARDS},
    names::Names,
    parts::{Arg, Exchange, ExchangeKind, Queue, TTL},
    route::{Binding, Destination, Route, task_routes},
    version::BrokerVersion,
};
use crate::{
    audit::AUDIT_RECORDS,
    task::{header, span_ms},
};

/// A queue that a lane had with more shards and does not have with the current settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The queue.
    pub queue: String,
    /// The lane that the queue belonged to.
    pub lane: String,
    /// The lane's number of shards in the current settings.
    pub shards: u16,
}

/// Everything that must exist on the broker for a fleet. [`Topology::steps`] has the order in which it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Exchanges.
    pub exchanges: Vec<Exchange>,
    /// Queues and streams.
    pub queues: Vec<Queue>,
    /// Bindings to add and to remove, in an order in which every task reaches exactly one queue at each step.
    pub routes: Vec<Route>,
    /// Queues that earlier settings with more shards may have created. No worker consumes them.
    pub leftovers: Vec<Leftover>,
    /// Retry queues that a lane may have had before it changed between one and several queues. They drain by
    /// their TTL.
    pub former_rungs: Vec<String>,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Retention of the directives stream: the longest time that a task can be deferred.
pub const DIRECTIVES_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Retention of the lifecycle stream. A running worker repeats its start event more often than that.
pub const LIFECYCLE_KEPT: Duration = DAY;
/// Retention of the records of operators' commands.
const AUDIT_KEPT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Segment size of the streams. The broker deletes whole segments, and records are few, so segments are small.
const SEGMENT_BYTES: i64 = 1_000_000;

impl Topology {
    /// The topology of a fleet with these lanes on a broker of this version.
    pub fn new(names: &Names, lanes: &[LaneSpec], ladder: &Ladder, version: BrokerVersion) -> Self {
        let exchange = |name: String, kind| Exchange { name, kind, arguments: BTreeMap::new() };
        let mut tasks = exchange(names.tasks(), ExchangeKind::Topic);
        tasks.arguments.insert("alternate-exchange", Arg::Text(names.unroutable()));
        let mut exchanges = vec![
            exchange(names.unroutable(), ExchangeKind::Fanout),
            exchange(names.dead(), ExchangeKind::Fanout),
            exchange(names.dead_waiting(), ExchangeKind::Fanout),
            tasks,
            exchange(names.results(), ExchangeKind::Topic),
            exchange(names.control(), ExchangeKind::Topic),
            exchange(names.events(), ExchangeKind::Topic),
        ];
        if lanes.iter().any(|lane| lane.exchange == LaneExchange::Mqtt) {
            exchanges.push(exchange(names.mqtt(), ExchangeKind::Topic));
        }

        let mut queues = vec![
            quorum(names.dead(), version),
            delay_queue(names.dead_waiting(), Names::DEAD_DELAY, &names.dead(), names.dead(), version),
            quorum(names.unroutable(), version),
            dead_lettered(quorum(names.quarantine(), version), &names.dead()),
            stream(names.directives(), DIRECTIVES_KEPT),
            stream(names.lifecycle(), LIFECYCLE_KEPT),
            stream(names.audit(), AUDIT_KEPT),
        ];
        let quarantine = Ladder::of_quarantine();
        queues.extend(quarantine.rungs().iter().map(|&delay| quarantine_rung(names, delay, version)));
        let bind = |exchange, queue, key: &str| {
            Route::Bind(Binding { exchange, to: Destination::Queue(queue), key: key.to_owned() })
        };
        let mut routes = vec![
            bind(names.dead(), names.dead(), "#"),
            bind(names.dead_waiting(), names.dead_waiting(), "#"),
            bind(names.control(), names.directives(), "stop.#"),
            bind(names.events(), names.lifecycle(), "life.#"),
            bind(names.events(), names.audit(), AUDIT_RECORDS),
        ];
        routes.extend(task_routes(names, lanes));
        let (mut leftovers, mut former_rungs) = (Vec::new(), Vec::new());
        for lane in lanes {
            let LaneSpec { name, shards, .. } = lane;
            if *shards > 1 {
                exchanges.push(shard_exchange(names, name));
            }
            queues.extend((0..*shards).map(|shard| lane_queue(names, lane, shard, version)));
            queues.extend(ladder.rungs().iter().map(|&delay| rung(names, lane, delay, version)));
            leftovers.extend((*shards..MOST_SHARDS).map(|shard| Leftover {
                queue: names.shard(name, shard),
                lane: name.clone(),
                shards: *shards,
            }));
            let former = LaneQueues::new(names, name, if *shards > 1 { 1 } else { MOST_SHARDS });
            former_rungs.extend(ladder.rungs().iter().map(|&delay| former.rung(delay)));
        }
        let (celery_exchanges, celery_queues, celery_routes) = delayed_delivery(names, lanes);
        exchanges.extend(celery_exchanges);
        queues.extend(celery_queues);
        routes.extend(celery_routes);
        Self { exchanges, queues, routes, leftovers, former_rungs }
    }

    /// The topology without its streams, for programs that only publish tasks.
    #[must_use]
    pub fn without_streams(mut self) -> Self {
        let streams: Vec<_> = self.queues.extract_if(.., |queue| queue.is_stream()).collect();
        self.routes.retain(|route| {
            let (Route::Bind(it) | Route::Unbind(it)) = route;
            !streams.iter().any(|stream| stream.name == it.to.name())
        });
        self
    }

    /// The bindings that must exist.
    pub fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.routes.iter().filter_map(|route| if let Route::Bind(it) = route { Some(it) } else { None })
    }

    /// The bindings that must not exist.
    pub fn unbound(&self) -> impl Iterator<Item = &Binding> {
        self.routes.iter().filter_map(|route| if let Route::Unbind(it) = route { Some(it) } else { None })
    }
}

/// The exchange that distributes a lane's tasks among its queues. If all of them are deleted, tasks go to the
/// unroutable queue, as for a lane with one queue.
fn shard_exchange(names: &Names, lane: &str) -> Exchange {
    let arguments = BTreeMap::from([
        ("hash-header", Arg::Text(header::KEY.into())),
        ("alternate-exchange", Arg::Text(names.unroutable())),
    ]);
    Exchange { name: names.shards(lane), kind: ExchangeKind::ConsistentHash, arguments }
}

fn lane_queue(names: &Names, lane: &LaneSpec, shard: u16, version: BrokerVersion) -> Queue {
    let mut queue = dead_lettered(quorum(names.shard(&lane.name, shard), version), &names.dead());
    if lane.exchange != LaneExchange::Tasks {
        // A topic of MQTT may be longer than the routing keys that AMQP clients can read. So an expired message would close
        // the connection of each client that reads dead letters.
        queue.arguments.insert("x-dead-letter-routing-key", Arg::Text(queue.name.clone()));
    }
    if let Some(timeout) = lane.consumer_timeout {
        queue.arguments.insert("x-consumer-timeout", Arg::Number(span_ms(timeout)));
    }
    // Not for the first queue: it exists already when shards are added, and arguments cannot be changed.
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

/// Sets up at-least-once dead-lettering. It needs all three arguments: if one is missing, the broker silently
/// falls back to at-most-once.
fn dead_lettered(mut queue: Queue, exchange: &str) -> Queue {
    queue.arguments.insert("x-dead-letter-exchange", Arg::Text(exchange.to_owned()));
    queue.arguments.insert("x-dead-letter-strategy", Arg::Text("at-least-once".into()));
    queue.arguments.insert("x-overflow", Arg::Text("reject-publish".into()));
    queue
}

/// A retry queue of a lane. Messages expire only at the head of a queue, so each delay needs its own queue.
fn rung(names: &Names, lane: &LaneSpec, delay: Delay, version: BrokerVersion) -> Queue {
    let lane = LaneQueues::new(names, &lane.name, lane.shards);
    let (exchange, key) = lane.entry();
    delay_queue(lane.rung(delay), delay, &exchange, key, version)
}

/// A delay queue in front of the quarantine. The delay gives the publisher time to ack the original, and keeps
/// workers without the handler from passing a task on in a tight loop.
fn quarantine_rung(names: &Names, delay: Delay, version: BrokerVersion) -> Queue {
    delay_queue(names.quarantine_retry(delay), delay, "", names.quarantine(), version)
}

/// A queue whose messages leave for `exchange` after `delay`.
fn delay_queue(name: String, delay: Delay, exchange: &str, key: String, version: BrokerVersion) -> Queue {
    let mut queue = dead_lettered(quorum(name, version), exchange);
    queue.arguments.insert("x-dead-letter-routing-key", Arg::Text(key));
    queue.arguments.insert(TTL, Arg::Number(delay.as_millis().try_into().unwrap_or(i64::MAX)));
    queue
}

/// A stream with this retention, in whole days.
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
    fn stream_retention_equals_the_constants_that_readers_use() {
        let names = Names::new("p");
        let version = "4.0.5".parse().unwrap();
        let topology = Topology::new(&names, &[], &Ladder::default(), version);
        let argument = |queue: String, name: &str| {
            let queue = topology.queues.iter().find(|it| it.name == queue).unwrap();
            queue.arguments[name].clone()
        };
        assert_eq!(argument(names.directives(), "x-max-age"), Arg::Text("30D".into()));
        assert_eq!(argument(names.lifecycle(), "x-max-age"), Arg::Text("1D".into()));
        assert_eq!(argument(names.audit(), "x-max-age"), Arg::Text("365D".into()));
        assert_eq!((DIRECTIVES_KEPT, LIFECYCLE_KEPT), (30 * DAY, DAY));
    }

    #[test]
    fn a_lane_of_foreign_messages_is_bound_to_their_exchange_and_renames_expired_ones() {
        let names = Names::new("p");
        let topology = |exchange| {
            let bindings = vec!["#".to_owned()];
            let name = "mqtt".to_owned();
            let lane = LaneSpec {
                name,
                exchange,
                bindings,
                catch_all: false,
                shards: 1,
                celery: false,
                queue: None,
                consumer_timeout: None,
            };
            Topology::new(&names, &[lane], &Ladder::default(), "4.0.5".parse().unwrap())
        };
        let has_exchange = |of: &Topology| of.exchanges.iter().any(|it| it.name == "p.mqtt");
        let key = |of: &Topology| {
            let queue = of.queues.iter().find(|it| it.name == "p.tasks.mqtt").unwrap();
            queue.arguments.get("x-dead-letter-routing-key").cloned()
        };
        let source = |of: &Topology| {
            let to_lane = |it: &&Binding| it.to.name() == "p.tasks.mqtt";
            of.bindings().filter(to_lane).map(|it| (it.exchange.clone(), it.key.clone())).collect::<Vec<_>>()
        };
        let renamed = Some(Arg::Text("p.tasks.mqtt".into()));
        let bound = |exchange: &str| vec![(exchange.to_owned(), "#".to_owned())];
        let tasks = topology(LaneExchange::Tasks);
        assert_eq!((has_exchange(&tasks), key(&tasks), source(&tasks)), (false, None, bound("p.tasks")));
        let mqtt = topology(LaneExchange::Mqtt);
        assert_eq!(
            (has_exchange(&mqtt), key(&mqtt), source(&mqtt)),
            (true, renamed.clone(), bound("p.mqtt"))
        );
        let other = topology(LaneExchange::Foreign("plant".into()));
        assert_eq!((has_exchange(&other), key(&other), source(&other)), (false, renamed, bound("plant")));
    }

    #[test]
    fn publishers_need_no_streams() {
        let names = Names::new("p");
        let all = Topology::new(&names, &[], &Ladder::default(), "4.0.5".parse().unwrap());
        let some = all.clone().without_streams();
        let streams = [names.directives(), names.lifecycle(), names.audit()];
        assert_eq!(some.queues.len() + streams.len(), all.queues.len());
        assert!(some.bindings().all(|it| !streams.contains(&it.to.name().to_owned())));
        assert_eq!(some.routes.len() + streams.len(), all.routes.len());
    }

    #[test]
    fn the_quarantines_delay_queues_dead_letter_into_the_quarantine() {
        let (names, ladder) = (Names::new("p"), Ladder::new(vec![Delay::from_millis(100)]).unwrap());
        let topology = Topology::new(&names, &[], &ladder, "4.0.5".parse().unwrap());
        let is_delay = |queue: &&Queue| queue.name.starts_with("p.retry.quarantine.");
        let queues: Vec<_> = topology.queues.iter().filter(is_delay).collect();
        let delays: Vec<_> = queues
            .iter()
            .map(|queue| (queue.name.as_str(), queue.arguments["x-message-ttl"].clone()))
            .collect();
        let expected = [
            ("p.retry.quarantine.1s", 1_000),
            ("p.retry.quarantine.5s", 5_000),
            ("p.retry.quarantine.15s", 15_000),
            ("p.retry.quarantine.1m", 60_000),
            ("p.retry.quarantine.5m", 300_000),
        ];
        assert_eq!(delays, expected.map(|(name, ms)| (name, Arg::Number(ms))));
        for queue in &queues {
            assert_eq!(queue.arguments["x-dead-letter-exchange"], Arg::Text(String::new()));
            assert_eq!(queue.arguments["x-dead-letter-routing-key"], Arg::Text("p.quarantine".into()));
            assert_eq!(queue.arguments["x-dead-letter-strategy"], Arg::Text("at-least-once".into()));
        }
        let optional: Vec<_> = topology.queues.iter().filter(|queue| queue.is_optional()).collect();
        assert_eq!(optional, queues[1..], "earlier versions have only the first");
    }
}
