//! The fleet at one moment, as the monitor keeps it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{fleet::Totals, scale::Load};

/// One lane: its queue as the broker reports it, its workers as their heartbeats report them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneSample {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not settled, as the broker reports them, else as the workers do.
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
    /// Time to work off the backlog with all slots busy, seconds. Unknown without a measured service time,
    /// infinite without a slot.
    pub backlog_seconds: Option<f64>,
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Time of the sample, milliseconds since 1970.
    pub at: i64,
    /// The lanes.
    pub lanes: BTreeMap<String, LaneSample>,
    /// Counters since the console started.
    #[serde(skip)]
    pub totals: Totals,
    /// Dead letters.
    pub dead: u64,
    /// Quarantined tasks.
    pub quarantine: u64,
    /// Unroutable messages in their queue.
    pub unroutable: u64,
}
