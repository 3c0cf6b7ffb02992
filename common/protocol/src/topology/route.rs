//! The bindings that route tasks to a lane, and the steps that change them when the number of shards changes,
//! so that no task is routed twice or dropped.

use strum::IntoStaticStr;

use super::{
    lane::{LaneSpec, MOST_SHARDS},
    names::Names,
};

/// The destination of a binding.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
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
        self.into()
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
/// The key of bindings to fanout exchanges, which ignore it.
const ANY_KEY: &str = "#";

/// The binding changes that lead from any number of shards to that of `lane`.
///
/// Invariant: before and after each step, every task has a route, and all its routes end in the same queue. A
/// message that is routed to a queue twice is stored once, so two routes are safe. To add shards, the lane is
/// first routed through the consistent-hash exchange to its old queue alone, then the other queues are bound;
/// to return to one queue, the steps are reversed. Queues no longer bound get no new tasks and keep theirs.
fn lane_routes(names: &Names, lane: &LaneSpec) -> Vec<Route> {
    let LaneSpec { name, shards, exchange, bindings, catch_all, .. } = lane;
    let to_shard = |shard: u16| Binding {
        exchange: names.shards(name),
        to: Destination::Queue(names.shard(name, shard)),
        key: WEIGHT.to_owned(),
    };
    let mut sources = Vec::new();
    if *catch_all {
        sources.push((names.unroutable(), ANY_KEY));
    }
    sources.extend(bindings.iter().map(|key| (exchange.name(names), key.as_str())));
    let bindings_to = |to: &Destination| {
        let binding = |(exchange, key): &(String, &str)| Binding {
            exchange: exchange.clone(),
            to: to.clone(),
            key: (*key).to_owned(),
        };
        sources.iter().map(binding).collect::<Vec<_>>()
    };
    let [direct, sharded] = entries(names, lane);
    let (wanted, other) = if *shards > 1 { (sharded, direct) } else { (direct, sharded) };

    let mut routes = Vec::new();
    if *shards > 1 {
        routes.push(Route::Bind(to_shard(0)));
    } else {
        routes.extend((1..MOST_SHARDS).map(|shard| Route::Unbind(to_shard(shard))));
    }
    routes.extend(bindings_to(&wanted).into_iter().map(Route::Bind));
    routes.extend(bindings_to(&other).into_iter().map(Route::Unbind));
    if *shards > 1 {
        routes.extend((1..*shards).map(|shard| Route::Bind(to_shard(shard))));
        routes.extend((*shards..MOST_SHARDS).map(|shard| Route::Unbind(to_shard(shard))));
    }
    routes
}

/// Both possible destinations of a lane's bindings: its first queue, for a lane with one, and its consistent-hash
/// exchange, for a lane with several.
fn entries(names: &Names, lane: &LaneSpec) -> [Destination; 2] {
    [Destination::Queue(names.lane(&lane.name)), Destination::Exchange(names.shards(&lane.name))]
}

/// The changes of the bindings of tasks to these lanes and to the queue of unroutable tasks.
///
/// Without a catch-all lane, that queue receives what no lane's bindings match. The alternate exchange always has a
/// binding, because the broker drops a task that it cannot route: a new binding comes first, before the old ones are
/// removed and before the exchange of tasks has a binding.
pub(super) fn task_routes(names: &Names, lanes: &[LaneSpec]) -> Vec<Route> {
    let from_alternate = |to| Binding { exchange: names.unroutable(), to, key: ANY_KEY.to_owned() };
    let queue = from_alternate(Destination::Queue(names.unroutable()));
    let (catch_all, others): (Vec<_>, Vec<_>) = lanes.iter().partition(|lane| lane.catch_all);
    let mut routes: Vec<_> = catch_all.iter().flat_map(|lane| lane_routes(names, lane)).collect();
    routes.push(if catch_all.is_empty() { Route::Bind(queue) } else { Route::Unbind(queue) });
    routes.extend(
        others.iter().flat_map(|lane| entries(names, lane)).map(|to| Route::Unbind(from_alternate(to))),
    );
    routes.extend(others.iter().flat_map(|lane| lane_routes(names, lane)));
    routes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::topology::LaneExchange;

    fn lane(shards: u16) -> LaneSpec {
        let bindings = vec!["reading.#".into(), "window.#".into()];
        let exchange = LaneExchange::Tasks;
        LaneSpec {
            name: "fast".into(),
            exchange,
            bindings,
            catch_all: true,
            shards,
            celery: false,
            queue: None,
            consumer_timeout: None,
        }
    }

    /// For each binding of an exchange with this key: the queues that a task can reach through it.
    fn reachable(bindings: &[Binding], exchange: &str, key: &str) -> Vec<BTreeSet<String>> {
        let bindings_of = |exchange: &str, key: &str| {
            bindings.iter().filter(move |it| it.exchange == exchange && it.key == key).collect::<Vec<_>>()
        };
        let reachable = bindings_of(exchange, key).into_iter().map(|first| match &first.to {
            Destination::Queue(queue) => BTreeSet::from([queue.clone()]),
            Destination::Exchange(shards) => {
                bindings_of(shards, WEIGHT).iter().map(|shard| shard.to.name().to_owned()).collect()
            }
        });
        reachable.collect()
    }

    fn apply(bound: &mut Vec<Binding>, route: Route) {
        match route {
            Route::Bind(binding) if !bound.contains(&binding) => bound.push(binding),
            Route::Bind(_) => {}
            Route::Unbind(binding) => bound.retain(|it| *it != binding),
        }
    }

    #[test]
    fn at_each_step_of_a_shard_change_a_task_reaches_exactly_one_queue() {
        let names = Names::new("g");
        let sources = [("g.tasks", "reading.#"), ("g.tasks", "window.#"), ("g.unroutable", ANY_KEY)];
        for (from, to) in [(1, 4), (4, 1), (2, 5), (5, 2), (3, 3), (1, 1), (1, 16), (16, 1)] {
            let mut bound: Vec<Binding> = Vec::new();
            let mut routed = false;
            for route in lane_routes(&names, &lane(from)).into_iter().chain(lane_routes(&names, &lane(to))) {
                apply(&mut bound, route);
                let by_source = sources.map(|(exchange, key)| reachable(&bound, exchange, key));
                // The first steps of `from` set up the lane; the invariant holds once all its keys are bound.
                routed |= by_source.iter().all(|routes| !routes.is_empty());
                if !routed {
                    continue;
                }
                for routes in by_source {
                    let queues = routes.iter().flatten().collect::<BTreeSet<_>>().len();
                    let no_dead_end = routes.iter().all(|queues| !queues.is_empty());
                    assert!(no_dead_end, "{from} to {to}: a binding without a queue behind it");
                    let one_queue = routes.len() == 1 || (routes.len() == 2 && queues == 1);
                    assert!(one_queue, "{from} to {to}: {routes:?}");
                }
            }
            let routes = reachable(&bound, "g.tasks", "reading.#");
            assert_eq!((routes.len(), routes[0].len()), (1, usize::from(to)), "{from} to {to}");
        }
    }

    /// Applies all routes of these lanes to `bound`, in order. Calls `each` with the bindings after each step.
    fn all_routes(bound: &mut Vec<Binding>, lanes: &[LaneSpec], mut each: impl FnMut(&[Binding])) {
        for route in task_routes(&Names::new("g"), lanes) {
            apply(bound, route);
            each(bound);
        }
    }

    #[test]
    fn the_alternate_exchange_always_has_a_binding_while_the_catch_all_lane_changes() {
        let lanes = |catch_all: &str, shards| {
            ["a", "b"].map(|name| LaneSpec {
                name: name.into(),
                catch_all: name == catch_all,
                ..lane(shards)
            })
        };
        let settings = ["none", "a", "b", "a", "none", "b", "none"];
        for (before, after) in settings.iter().zip(&settings[1..]) {
            let mut bound = Vec::new();
            all_routes(&mut bound, &lanes(before, 1), |_| {});
            all_routes(&mut bound, &lanes(after, 1), |bound| {
                let routes = reachable(bound, "g.unroutable", ANY_KEY);
                assert!(!routes.is_empty(), "{before} to {after}: unroutable tasks are dropped");
            });
            let queue = if *after == "none" { "g.unroutable".into() } else { format!("g.tasks.{after}") };
            assert_eq!(reachable(&bound, "g.unroutable", ANY_KEY), [BTreeSet::from([queue])]);
        }
        let mut bound = Vec::new();
        all_routes(&mut bound, &lanes("a", 1), |_| {});
        all_routes(&mut bound, &lanes("b", 3), |_| {});
        let shards = reachable(&bound, "g.unroutable", ANY_KEY);
        assert_eq!((shards.len(), shards[0].len()), (1, 3), "{shards:?}");
    }
}
