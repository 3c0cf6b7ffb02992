//! The exchanges and queues of Celery's delayed delivery.
//!
//! A sender whose application has quorum queues publishes a task with a countdown to `celery_delayed_27`, with the seconds
//! as 28 bits before the routing key. Each level delays by a power of two seconds or passes on, and after the last one the
//! exchange `celery_delayed_delivery` routes the message. Celery's workers declare all of it, exactly as here
//! (`kombu.transport.native_delayed_delivery`). A fleet declares it for senders that have no worker of Celery.

use std::collections::BTreeMap;

use super::{
    lane::LaneSpec,
    names::Names,
    parts::{Arg, CELERY_DELAYED, Exchange, ExchangeKind, Queue},
    route::{Binding, Destination, Route},
};

/// The number of levels.
const LEVELS: usize = 28;
/// The exchange behind the last level.
const DELIVERY: &str = "celery_delayed_delivery";

/// The exchanges, queues and bindings of the delayed delivery; empty if no lane receives calls of Celery.
pub(super) fn delayed_delivery(names: &Names, lanes: &[LaneSpec]) -> (Vec<Exchange>, Vec<Queue>, Vec<Route>) {
    let lanes: Vec<_> = lanes.iter().filter(|lane| lane.celery).collect();
    if lanes.is_empty() {
        return Default::default();
    }
    let level = |level: usize| format!("{CELERY_DELAYED}{level}");
    let below = |of: usize| if of == 0 { DELIVERY.to_owned() } else { level(of - 1) };
    let (mut exchanges, mut queues, mut routes) = (Vec::new(), Vec::new(), Vec::new());
    let exchange = |name| Exchange { name, kind: ExchangeKind::Topic, arguments: BTreeMap::new() };
    let mut bind = |exchange: &str, to, key| {
        routes.push(Route::Bind(Binding { exchange: exchange.to_owned(), to, key }));
    };
    exchanges.push(exchange(DELIVERY.to_owned()));
    // From the last level to the first, so that each has its way out before a message can come in.
    for of in 0..LEVELS {
        let (name, next, bits) = (level(of), below(of), "*.".repeat(LEVELS - 1 - of));
        exchanges.push(exchange(name.clone()));
        queues.push(level_queue(of, &next));
        bind(&name, Destination::Exchange(next), format!("{bits}0.#"));
        bind(&name, Destination::Queue(name.clone()), format!("{bits}1.#"));
    }
    for lane in lanes {
        let to = match lane.shards {
            1 => Destination::Queue(names.lane(&lane.name)),
            _ => Destination::Exchange(names.shards(&lane.name)),
        };
        lane.bindings.iter().for_each(|key| bind(DELIVERY, to.clone(), behind_bits(key)));
        if let Some(queue) = &lane.queue {
            // Celery gives a queue its own name as the routing key unless the application sets another one.
            bind(DELIVERY, Destination::Queue(queue.clone()), behind_bits(queue));
        }
    }
    (exchanges, queues, routes)
}

/// The binding key for messages that were published with `key` before the bits came before it.
fn behind_bits(key: &str) -> String {
    if key.starts_with('#') { key.to_owned() } else { format!("#.{key}") }
}

fn level_queue(level: usize, next: &str) -> Queue {
    let arguments = BTreeMap::from([
        ("x-queue-type", Arg::Text("quorum".to_owned())),
        ("x-dead-letter-strategy", Arg::Text("at-least-once".to_owned())),
        ("x-overflow", Arg::Text("reject-publish".to_owned())),
        ("x-message-ttl", Arg::Number(1000 << level)),
        ("x-dead-letter-exchange", Arg::Text(next.to_owned())),
    ]);
    Queue { name: format!("{CELERY_DELAYED}{level}"), arguments }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{task::matches_binding, topology::LaneExchange};

    fn lane(celery: bool, shards: u16) -> LaneSpec {
        LaneSpec {
            name: "jobs".to_owned(),
            exchange: LaneExchange::Tasks,
            bindings: vec!["proj.#".to_owned()],
            catch_all: false,
            shards,
            celery,
            queue: celery.then(|| "celery".to_owned()),
            consumer_timeout: None,
        }
    }

    #[test]
    fn only_a_lane_of_celery_needs_it() {
        let (exchanges, queues, routes) = delayed_delivery(&Names::new("g"), &[lane(false, 1)]);
        assert_eq!((exchanges.len(), queues.len(), routes.len()), (0, 0, 0));
        let (exchanges, queues, routes) = delayed_delivery(&Names::new("g"), &[lane(true, 1)]);
        assert_eq!((exchanges.len(), queues.len(), routes.len()), (29, 28, 58));
        assert!(exchanges.iter().all(Exchange::is_celerys) && queues.iter().all(Queue::is_celerys));
    }

    /// Follows a message as the broker does. Returns the seconds that it waits, and where it arrives.
    fn follow(routes: &[Route], queues: &[Queue], key: &str) -> (i64, Vec<String>) {
        let (mut exchange, mut waited) = (format!("{CELERY_DELAYED}27"), 0);
        loop {
            let matching = routes.iter().filter_map(|route| match route {
                Route::Bind(it) if it.exchange == exchange && matches_binding(&it.key, key) => Some(&it.to),
                _ => None,
            });
            let to: Vec<_> = matching.collect();
            if exchange == DELIVERY {
                return (waited, to.into_iter().map(|it| it.name().to_owned()).collect());
            }
            assert_eq!(to.len(), 1, "one way from {exchange}");
            exchange = match to[0] {
                Destination::Exchange(next) => next.clone(),
                Destination::Queue(name) => {
                    let arguments = &queues.iter().find(|it| it.name == *name).unwrap().arguments;
                    let Arg::Number(ms) = arguments["x-message-ttl"] else { panic!("a number") };
                    waited += ms / 1000;
                    let Arg::Text(next) = &arguments["x-dead-letter-exchange"] else { panic!("a name") };
                    next.clone()
                }
            };
        }
    }

    #[test]
    fn a_message_waits_for_its_countdown_and_reaches_the_lane() {
        let countdown = |seconds: u32, key: &str| {
            let bits: Vec<_> = format!("{seconds:028b}").chars().map(String::from).collect();
            format!("{}.{key}", bits.join("."))
        };
        let (_, queues, routes) = delayed_delivery(&Names::new("g"), &[lane(true, 1)]);
        for seconds in [1, 2, 60, 86_401, (1 << 28) - 1] {
            let to = |key: &str| follow(&routes, &queues, &countdown(seconds, key));
            assert_eq!(to("proj.tasks.add"), (seconds.into(), vec!["g.tasks.jobs".to_owned()]));
            assert_eq!(to("celery"), (seconds.into(), vec!["celery".to_owned()]));
            assert_eq!(to("other"), (seconds.into(), vec![]));
        }
        let (_, queues, routes) = delayed_delivery(&Names::new("g"), &[lane(true, 2)]);
        let (_, to) = follow(&routes, &queues, &countdown(3, "proj.a"));
        assert_eq!(to, ["g.shards.jobs"]);
    }
}
