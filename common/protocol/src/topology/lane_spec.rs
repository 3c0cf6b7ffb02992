//! The settings of a lane that determine its part of the topology.

use std::time::Duration;

/// The maximum number of queues of a lane. Each needs a consumer in every worker, and more queues than a cluster
/// has nodes spread their leaders no further.
pub const MOST_SHARDS: u16 = 16;

/// The settings of a lane that determine its part of the topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The lane's name.
    pub name: String,
    /// Binding keys (topic patterns) of the tasks that the lane receives.
    pub bindings: Vec<String>,
    /// The number of queues that share the lane's tasks, at least 1.
    pub shards: u16,
    /// The broker's limit on how long a delivery may stay unsettled; the broker's default if absent.
    pub consumer_timeout: Option<Duration>,
}
