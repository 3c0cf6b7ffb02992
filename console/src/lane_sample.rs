//! One lane at one moment.

use serde::Serialize;

use crate::scale::Load;

/// One lane: its queue as the broker reports it, its workers as their heartbeats report them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneSample {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not settled, as the workers report them if all are heard, else as the broker does.
    pub unacked: u64,
    /// Consumers of the queue.
    pub consumers: u64,
    /// Tasks in the retry ladder.
    pub retrying: u64,
    /// Tasks that leave the queue per second.
    pub removal_rate: f64,
    /// Input of the scaling rule.
    #[serde(flatten)]
    pub load: Load,
    /// Slots of all workers.
    pub slots: u64,
    /// How long the oldest waiting task has been waiting, seconds, as far as samples reach back; 0 if none waits. Unknown
    /// while the load is not known.
    pub oldest_seconds: Option<f64>,
    /// How long tasks have been waiting while nothing ended in the lane's slots, or nothing left its queue, seconds.
    pub stalled_seconds: f64,
    /// Why the load is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
