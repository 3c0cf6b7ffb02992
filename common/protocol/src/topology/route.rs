//! The bindings that route tasks to a lane, and the steps that change them when the number of shards changes,
//! so that no task is routed twice or dropped.

use super::{
    lane_spec::{LaneSpec, MOST_SHARDS},
    names::Names,
};

/// The destination of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A queue, by name.
    Queue(String),
    /// An exchange, by name.
    Exchange(String),
}

impl Destination {
    /// The name of the queue or exchange.
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }

    /// The destination type in RabbitMQ definitions: `queue` or `exchange`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Queue(_) => "queue",
            Self::Exchange(_) => "exchange",
        }
    }
}

/// A binding of a queue or an exchange to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The source exchange.
    pub exchange: String,
    /// The destination.
    pub to: Destination,
    /// The binding key: a pattern, or the weight for a consistent-hash exchange.
    pub key: String,
}

/// A change of one binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Add this binding.
    Bind(Binding),
    /// Remove this binding if it exists.
    Unbind(Binding),
}

/// The weight of every queue at the consistent-hash exchange. Equal weights give equal shares.
const WEIGHT: &str = "1";

/// The binding changes that lead from any number of shards to that of `lane`.
///
/// Invariant: before and after each step, every task has a route, and all its routes end in the same queue. A
/// message that is routed to a queue twice is stored once, so two routes are safe. To add shards, the lane is
/// first routed through the consistent-hash exchange to its old queue alone, then the other queues are bound;
/// to return to one queue, the steps are reversed. Queues no longer bound get no new tasks and keep theirs.
pub(super) fn lane_routes(names: &Names, lane: &LaneSpec) -> Vec<Route> {
    let LaneSpec { name, shards, bindings, .. } = lane;
    let to_shard = |shard: u16| Binding {
        exchange: names.shards(name),
        to: Destination::Queue(names.shard(name, shard)),
        key: WEIGHT.to_owned(),
    };
    let to = |to: &Destination, key: &String| Binding {
        exchange: names.tasks(),
        to: to.clone(),
        key: key.clone(),
    };
    let direct = Destination::Queue(names.lane(name));
    let sharded = Destination::Exchange(names.shards(name));
    let (wanted, other) = if *shards > 1 { (sharded, direct) } else { (direct, sharded) };

    let mut routes = Vec::new();
    if *shards > 1 {
        routes.push(Route::Bind(to_shard(0)));
    } else {
        routes.extend((1..MOST_SHARDS).map(|shard| Route::Unbind(to_shard(shard))));
    }
    routes.extend(bindings.iter().map(|key| Route::Bind(to(&wanted, key))));
    routes.extend(bindings.iter().map(|key| Route::Unbind(to(&other, key))));
    if *shards > 1 {
        routes.extend((1..*shards).map(|shard| Route::Bind(to_shard(shard))));
        routes.extend((*shards..MOST_SHARDS).map(|shard| Route::Unbind(to_shard(shard))));
    }
    routes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lane(shards: u16) -> LaneSpec {
        let bindings = vec!["reading.#".into(), "window.#".into()];
        LaneSpec { name: "fast".into(), bindings, shards, consumer_timeout: None }
    }

    /// For each binding of the tasks exchange with this key: the queues that a task can reach through it.
    fn reachable(bindings: &[Binding], key: &str) -> Vec<BTreeSet<String>> {
        let bindings_of = |exchange: &str, key: &str| {
            bindings.iter().filter(move |it| it.exchange == exchange && it.key == key).collect::<Vec<_>>()
        };
        let reachable = bindings_of("g.tasks", key).into_iter().map(|first| match &first.to {
            Destination::Queue(queue) => BTreeSet::from([queue.clone()]),
            Destination::Exchange(shards) => {
                bindings_of(shards, WEIGHT).iter().map(|shard| shard.to.name().to_owned()).collect()
            }
        });
        reachable.collect()
    }

    #[test]
    fn at_each_step_of_a_shard_change_a_task_reaches_exactly_one_queue() {
        let names = Names::new("g");
        for (from, to) in [(1, 4), (4, 1), (2, 5), (5, 2), (3, 3), (1, 1), (1, 16), (16, 1)] {
            let mut bound: Vec<Binding> = Vec::new();
            let mut routed = false;
            for route in lane_routes(&names, &lane(from)).into_iter().chain(lane_routes(&names, &lane(to))) {
                match route {
                    Route::Bind(binding) if !bound.contains(&binding) => bound.push(binding),
                    Route::Bind(_) => {}
                    Route::Unbind(binding) => bound.retain(|it| *it != binding),
                }
                let by_key = ["reading.#", "window.#"].map(|key| reachable(&bound, key));
                // The first steps of `from` set up the lane; the invariant holds once all its keys are bound.
                routed |= by_key.iter().all(|routes| !routes.is_empty());
                if !routed {
                    continue;
                }
                for routes in by_key {
                    let queues = routes.iter().flatten().collect::<BTreeSet<_>>().len();
                    let no_dead_end = routes.iter().all(|queues| !queues.is_empty());
                    assert!(no_dead_end, "{from} to {to}: a binding without a queue behind it");
                    let one_queue = routes.len() == 1 || (routes.len() == 2 && queues == 1);
                    assert!(one_queue, "{from} to {to}: {routes:?}");
                }
            }
            let routes = reachable(&bound, "reading.#");
            assert_eq!((routes.len(), routes[0].len()), (1, usize::from(to)), "{from} to {to}");
        }
    }
}
