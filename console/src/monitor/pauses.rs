//! Who paused what, for the verdict: read from the audit log when something is paused that was not before, and once in a
//! while, because something may be resumed and paused again between two looks.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use garenne_operator::ticks::ticks;
use garenne_protocol::heartbeat::Program;
use tokio::time::Instant;

use super::{FleetMonitor, now};
use crate::{
    audit_log::{PauseRecords, read_pauses},
    fleet::paused,
};

/// Pause between two looks at what is paused.
const INTERVAL: Duration = Duration::from_secs(1);
/// Pause before the audit log is read again although nothing else is paused.
const READ_AGAIN: Duration = Duration::from_secs(60);

/// What is known of who paused what.
pub(super) struct KnownPauses {
    /// The records that were read last, or why they could not be read.
    pub(super) records: Result<PauseRecords, String>,
    /// What was paused at that time.
    looked_up: BTreeSet<(String, String)>,
    read_at: Instant,
}

impl KnownPauses {
    pub(super) fn none() -> Self {
        Self { records: Ok(PauseRecords::new()), looked_up: BTreeSet::new(), read_at: Instant::now() }
    }
}

impl FleetMonitor {
    /// Reads who paused what, whenever that changes.
    pub(super) async fn keep_reading_pauses(self: &Arc<Self>) {
        let mut tick = ticks(INTERVAL);
        loop {
            tick.tick().await;
            let Some(present) = self.new_pauses() else { continue };
            let read = read_pauses(&self.operator).await.map_err(|failure| failure.to_string());
            self.state().pauses = KnownPauses { records: read, looked_up: present, read_at: Instant::now() };
        }
    }

    /// What is paused, if it is time to look it up.
    fn new_pauses(&self) -> Option<BTreeSet<(String, String)>> {
        let mut state = self.state();
        let present = paused(&state.roster.members(Program::Worker, now()));
        // What is paused again is looked up again.
        state.pauses.looked_up.retain(|key| present.contains(key));
        let is_new = !present.is_subset(&state.pauses.looked_up);
        let is_old = !present.is_empty() && state.pauses.read_at.elapsed() > READ_AGAIN;
        (is_new || is_old).then_some(present)
    }
}
