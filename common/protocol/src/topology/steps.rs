//! The order in which a topology is declared and changed.
//!
//! Foreign clients publish with confirms and without `mandatory`, also while the topology is declared. The broker
//! confirms a message of theirs that no queue is bound for and drops it. So each exchange is declared directly before
//! its first binding, and the exchange of tasks after its alternate exchange has one. Until then publishing to it is a
//! channel error, which confirms nothing.

use super::{
    parts::{Exchange, Queue},
    plan::Topology,
    route::{Binding, Destination, Route},
};

/// One declaration or change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Declare this queue.
    Queue(&'a Queue),
    /// Declare this exchange.
    Exchange(&'a Exchange),
    /// Change this binding.
    Route(&'a Route),
}

impl Topology {
    /// All declarations and changes in order: a queue comes before its bindings, an exchange directly before its
    /// first one.
    ///
    /// The delay queues that have no binding come last. A start that finds one missing declares everything again, so that a lane whose
    /// declaration was interrupted gets its bindings.
    pub fn steps(&self) -> Vec<Step<'_>> {
        let is_bound =
            |queue: &Queue| self.bindings().any(|it| it.to == Destination::Queue(queue.name.clone()));
        let (delays, queues): (Vec<_>, Vec<_>) =
            self.queues.iter().partition(|queue| queue.is_delay() && !is_bound(queue));
        let mut steps: Vec<_> = queues.into_iter().map(Step::Queue).collect();
        let mut exchanges: Vec<_> = self.exchanges.iter().collect();
        for route in &self.routes {
            let (Route::Bind(binding) | Route::Unbind(binding)) = route;
            let (first_used, later) = exchanges.into_iter().partition(|exchange| binding.names(exchange));
            steps.extend(Vec::into_iter(first_used).map(Step::Exchange));
            steps.push(Step::Route(route));
            exchanges = later;
        }
        steps.extend(exchanges.into_iter().map(Step::Exchange));
        steps.extend(delays.into_iter().map(Step::Queue));
        steps
    }
}

impl Binding {
    /// Whether the exchange is this binding's source or destination.
    fn names(&self, exchange: &Exchange) -> bool {
        let is_destination = matches!(&self.to, Destination::Exchange(name) if *name == exchange.name);
        self.exchange == exchange.name || is_destination
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::topology::{Arg, Ladder, LaneExchange, LaneSpec, Names};

    /// What exists on a broker: exchanges with their alternate exchanges, queues, and bindings.
    #[derive(Default)]
    struct Broker {
        exchanges: BTreeMap<String, Option<String>>,
        queues: BTreeSet<String>,
        bindings: Vec<Binding>,
    }

    impl Broker {
        fn take(&mut self, step: Step<'_>) {
            match step {
                Step::Queue(queue) => drop(self.queues.insert(queue.name.clone())),
                Step::Exchange(exchange) => {
                    let alternate = exchange.arguments.get("alternate-exchange").map(|name| match name {
                        Arg::Text(name) => name.clone(),
                        Arg::Number(_) => unreachable!("a name"),
                    });
                    self.exchanges.insert(exchange.name.clone(), alternate);
                }
                Step::Route(Route::Bind(binding)) => {
                    assert!(self.exchanges.contains_key(&binding.exchange), "{binding:?}");
                    let to_queue = self.queues.contains(binding.to.name());
                    assert!(to_queue || self.exchanges.contains_key(binding.to.name()), "{binding:?}");
                    self.bindings.push(binding.clone());
                }
                Step::Route(Route::Unbind(binding)) => self.bindings.retain(|it| it != binding),
            }
        }

        /// Whether a queue stores a message with this routing key, of which the bindings have exactly that one or `#`.
        fn stores(&self, exchange: &str, key: &str) -> bool {
            let matching =
                |it: &&Binding| it.exchange == exchange && [key, "#", "1"].contains(&it.key.as_str());
            let mut reached = self.bindings.iter().filter(matching).peekable();
            if reached.peek().is_none() {
                let alternate = self.exchanges[exchange].as_deref();
                return alternate.is_some_and(|it| self.exchanges.contains_key(it) && self.stores(it, key));
            }
            reached.all(|it| self.queues.contains(it.to.name()) || self.stores(it.to.name(), key))
        }
    }

    fn topology(lanes: &[(&str, &str, bool, u16)]) -> Topology {
        let lane = |&(name, key, catch_all, shards): &(&str, &str, bool, u16)| LaneSpec {
            name: name.to_owned(),
            exchange: LaneExchange::Tasks,
            bindings: vec![key.to_owned()],
            catch_all,
            shards,
            celery: false,
            queue: None,
            consumer_timeout: None,
        };
        let lanes: Vec<_> = lanes.iter().map(lane).collect();
        Topology::new(&Names::new("g"), &lanes, &Ladder::default(), "4.0.5".parse().unwrap())
    }

    #[test]
    fn no_confirmed_task_vanishes_while_a_topology_is_declared_and_changed() {
        let histories = [
            vec![topology(&[("fast", "a", false, 1), ("default", "b", true, 1)])],
            vec![topology(&[("fast", "a", false, 3), ("default", "b", true, 3)])],
            // No catch-all lane, then a new lane, then more shards and a catch-all lane, then another one.
            vec![
                topology(&[("fast", "a", false, 1)]),
                topology(&[("fast", "a", false, 1), ("new", "b", false, 1)]),
                topology(&[("fast", "a", false, 4), ("new", "b", true, 2)]),
                topology(&[("fast", "a", true, 1), ("new", "b", false, 1)]),
            ],
        ];
        for history in histories {
            let mut broker = Broker::default();
            for step in history.iter().flat_map(Topology::steps) {
                broker.take(step);
                if broker.exchanges.contains_key("g.tasks") {
                    for key in ["a", "b", "nobody"] {
                        assert!(broker.stores("g.tasks", key), "{key} is dropped after {step:?}");
                    }
                }
            }
            assert!(broker.exchanges.contains_key("g.tasks") && broker.exchanges.contains_key("g.results"));
        }
    }

    #[test]
    fn every_part_is_declared_once_and_delay_queues_last() {
        let topology = topology(&[("fast", "a", true, 2)]);
        let steps = topology.steps();
        let parts = topology.queues.len() + topology.exchanges.len() + topology.routes.len();
        assert_eq!(steps.len(), parts);
        let delays = topology.queues.iter().filter(|it| it.name.starts_with("g.retry.")).count();
        let last = &steps[parts - delays..];
        assert!(last.iter().all(|step| matches!(step, Step::Queue(queue) if queue.is_delay())), "{last:?}");
    }
}
