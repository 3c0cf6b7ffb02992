//! A lane: its settings, and the names of its queues. It has one, or several behind a consistent-hash exchange.

use std::time::Duration;

use super::{ladder::Delay, names::Names};

/// The maximum number of queues of a lane. Each needs a consumer in every worker, and more queues than a cluster
/// has nodes spread their leaders no further.
pub const MOST_SHARDS: u16 = 16;

/// The exchange that a lane receives messages from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneExchange {
    /// The exchange of tasks.
    #[default]
    Tasks,
    /// The exchange for foreign messages from RabbitMQ's MQTT plugin. It is part of the topology.
    Mqtt,
    /// An exchange with foreign messages that someone else declares.
    Foreign(String),
}

impl LaneExchange {
    /// The exchange's name.
    pub fn name(&self, names: &Names) -> String {
        match self {
            Self::Tasks => names.tasks(),
            Self::Mqtt => names.mqtt(),
            Self::Foreign(name) => name.clone(),
        }
    }
}

/// The settings of a lane that determine its part of the topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The lane's name.
    pub name: String,
    /// The exchange that the lane receives messages from.
    pub exchange: LaneExchange,
    /// Binding keys (topic patterns) of the messages that the lane receives.
    pub bindings: Vec<String>,
    /// Whether the lane receives the tasks that no lane's bindings match, through the alternate exchange.
    pub catch_all: bool,
    /// The number of queues that share the lane's tasks, at least 1.
    pub shards: u16,
    /// Whether the lane receives calls of Celery's senders.
    pub celery: bool,
    /// A queue that others declare and that the lane's workers consume too.
    pub queue: Option<String>,
    /// The broker's limit on how long a delivery may stay unsettled; the broker's default if absent.
    pub consumer_timeout: Option<Duration>,
}

/// The names of a lane's queues.
#[derive(Clone, Copy, Debug)]
pub struct LaneQueues<'a> {
    names: &'a Names,
    lane: &'a str,
    shards: u16,
}

impl<'a> LaneQueues<'a> {
    /// The queues of `lane`, which has `shards` of them, at least 1.
    pub fn new(names: &'a Names, lane: &'a str, shards: u16) -> Self {
        Self { names, lane, shards }
    }

    /// Whether several queues share the lane's tasks.
    pub fn is_sharded(self) -> bool {
        self.shards > 1
    }

    /// The queues that hold the lane's tasks, at least one.
    pub fn queues(self) -> Vec<String> {
        (0..self.shards).map(|shard| self.names.shard(self.lane, shard)).collect()
    }

    /// The lane's retry queue for this delay.
    pub fn rung(self, delay: Delay) -> String {
        if self.is_sharded() {
            self.names.retry_shards(self.lane, delay)
        } else {
            self.names.retry(self.lane, delay)
        }
    }

    /// Exchange and routing key to publish a task directly to the lane, independent of its bindings. For a
    /// sharded lane the task needs the header `garenne-key`: tasks without one all go to the same queue.
    pub fn entry(self) -> (String, String) {
        let exchange = if self.is_sharded() { self.names.shards(self.lane) } else { String::new() };
        (exchange, self.names.lane(self.lane))
    }
}
