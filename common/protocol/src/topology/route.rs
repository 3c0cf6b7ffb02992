//! How tasks get from the exchange to their lane, and from one way to another without a task that takes both
//! or none.

use super::{
    lane_spec::{LaneSpec, MOST_SHARDS},
    names::Names,
};

/// Where a binding leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To a queue.
    Queue(String),
    /// To another exchange.
    Exchange(String),
}

impl Destination {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }

    /// The broker's word for what it is.
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
    /// From.
    pub exchange: String,
    /// To.
    pub to: Destination,
    /// The pattern; the weight where the exchange divides by hash.
    pub key: String,
}

/// A step of the way to the wanted bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Make this binding.
    Bind(Binding),
    /// Take it away, if it is there.
    Unbind(Binding),
}

/// Each queue gets the same share, whatever the weight: it counts only between queues.
const WEIGHT: &str = "1";

/// The steps from whatever number of shards a lane has to the wanted one.
///
/// Between two steps every task has a way, and all its ways end in one queue: a broker stores a message that
/// reaches a queue twice once. So a lane that grows is first led through the divider to its old queue alone,
/// and only then are there more; one that shrinks to one goes the same way back. Queues that are left over
/// get nothing new and keep what they hold.
pub(super) fn lane_routes(names: &Names, lane: &LaneSpec) -> Vec<Route> {
    let LaneSpec { name, shards, bindings, .. } = lane;
    let share = |shard: u16| Binding {
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
    let divided = Destination::Exchange(names.shards(name));
    let (wanted, other) = if *shards > 1 { (divided, direct) } else { (direct, divided) };

    let mut routes = Vec::new();
    if *shards > 1 {
        routes.push(Route::Bind(share(0)));
    } else {
        routes.extend((1..MOST_SHARDS).map(|shard| Route::Unbind(share(shard))));
    }
    routes.extend(bindings.iter().map(|key| Route::Bind(to(&wanted, key))));
    routes.extend(bindings.iter().map(|key| Route::Unbind(to(&other, key))));
    if *shards > 1 {
        routes.extend((1..*shards).map(|shard| Route::Bind(share(shard))));
        routes.extend((*shards..MOST_SHARDS).map(|shard| Route::Unbind(share(shard))));
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

    /// The queues that a task may reach: those of each way, by key of the topic exchange.
    fn ways(bindings: &[Binding], key: &str) -> Vec<BTreeSet<String>> {
        let of = |exchange: &str, key: &str| {
            bindings.iter().filter(move |it| it.exchange == exchange && it.key == key).collect::<Vec<_>>()
        };
        let ways = of("g.tasks", key).into_iter().map(|first| match &first.to {
            Destination::Queue(queue) => BTreeSet::from([queue.clone()]),
            Destination::Exchange(divider) => {
                of(divider, WEIGHT).iter().map(|share| share.to.name().to_owned()).collect()
            }
        });
        ways.collect()
    }

    #[test]
    fn at_each_step_from_any_number_of_shards_to_any_other_a_task_has_one_place() {
        let names = Names::new("g");
        for (from, to) in [(1, 4), (4, 1), (2, 5), (5, 2), (3, 3), (1, 1), (1, 16), (16, 1)] {
            let mut bound: Vec<Binding> = Vec::new();
            let mut begun = false;
            for route in lane_routes(&names, &lane(from)).into_iter().chain(lane_routes(&names, &lane(to))) {
                match route {
                    Route::Bind(binding) if !bound.contains(&binding) => bound.push(binding),
                    Route::Bind(_) => {}
                    Route::Unbind(binding) => bound.retain(|it| *it != binding),
                }
                let of_key = ["reading.#", "window.#"].map(|key| ways(&bound, key));
                begun |= of_key.iter().all(|ways| !ways.is_empty());
                if !begun {
                    continue;
                }
                for ways in of_key {
                    let places = ways.iter().flatten().collect::<BTreeSet<_>>().len();
                    assert!(ways.iter().all(|way| !way.is_empty()), "{from} to {to}: a way to nowhere");
                    assert!(ways.len() == 1 || (ways.len() == 2 && places == 1), "{from} to {to}: {ways:?}");
                }
            }
            let ways = ways(&bound, "reading.#");
            assert_eq!((ways.len(), ways[0].len()), (1, usize::from(to)), "{from} to {to}");
        }
    }
}
