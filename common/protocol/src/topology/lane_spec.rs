//! A lane as the topology sees it.

use std::time::Duration;

/// Queues that may share a lane's tasks, at most: no cluster spreads more leaders, and each costs every worker a
/// consumer.
pub const MOST_SHARDS: u16 = 16;

/// A lane as the topology sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The lane's name.
    pub name: String,
    /// Topic patterns whose tasks it takes.
    pub bindings: Vec<String>,
    /// Queues that share its tasks, 1 or more.
    pub shards: u16,
    /// How long the broker lets a delivery stay unsettled; the broker's own default when absent.
    pub consumer_timeout: Option<Duration>,
}
