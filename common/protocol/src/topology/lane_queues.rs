//! Where a lane's tasks are: in one queue, or in several behind an exchange that divides them.

use super::{delay::Delay, names::Names};

/// A lane's queues, by name.
#[derive(Clone, Copy, Debug)]
pub struct LaneQueues<'a> {
    names: &'a Names,
    lane: &'a str,
    shards: u16,
}

impl<'a> LaneQueues<'a> {
    /// A lane's queues; `shards` is how many share its tasks, 1 or more.
    pub fn new(names: &'a Names, lane: &'a str, shards: u16) -> Self {
        Self { names, lane, shards }
    }
}

impl LaneQueues<'_> {
    /// Whether several queues share the lane's tasks.
    pub fn is_sharded(self) -> bool {
        self.shards > 1
    }

    /// The queues that hold its tasks, one or more.
    pub fn queues(self) -> Vec<String> {
        (0..self.shards).map(|shard| self.names.shard(self.lane, shard)).collect()
    }

    /// The queue of its retry ladder for this delay.
    pub fn rung(self, delay: Delay) -> String {
        if self.is_sharded() {
            self.names.retry_shards(self.lane, delay)
        } else {
            self.names.retry(self.lane, delay)
        }
    }

    /// What its tasks are published to straight, past its bindings: an exchange and a routing key. A task
    /// for several queues needs a key (`garenne-key`), or it lands where all land that have none.
    pub fn entry(self) -> (String, String) {
        let exchange = if self.is_sharded() { self.names.shards(self.lane) } else { String::new() };
        (exchange, self.names.lane(self.lane))
    }
}
