//! The fleet at one moment, as the monitor keeps it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{fleet::Totals, lane_sample::LaneSample};

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

impl Sample {
    /// Deliveries that were removed from a lane's queue since the console started.
    pub(super) fn removed(&self, lane: &str) -> u64 {
        self.totals.removed.get(lane).copied().unwrap_or(0)
    }
}
