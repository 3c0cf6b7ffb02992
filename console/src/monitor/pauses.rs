//! Who paused what, for the verdict: read from the audit log when something is paused that was not before, when workers
//! cannot be heard any more, and once in a while, because something may be resumed and paused again between two looks.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use garenne_common::lock::lock;
use garenne_operator::ticks::ticks;
use garenne_protocol::heartbeat::Program;
use tokio::time::Instant;

use super::{FleetMonitor, now};
use crate::{
    audit_log::{PauseRecords, read_pauses},
    fleet::{Roster, paused},
};

/// Pause between two looks at what is paused.
const INTERVAL: Duration = Duration::from_secs(1);
/// Pause before the audit log is read again although nothing else is paused.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// The same after it could not be read.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// What is known of who paused what.
pub(super) struct KnownPauses {
    /// The records that were read last, or why they could not be read.
    pub(super) records: Result<PauseRecords, String>,
    /// What was paused at that time.
    looked_up: BTreeSet<(String, String)>,
    /// Whether workers could be heard then.
    was_heard: bool,
    read_at: Instant,
}

impl KnownPauses {
    pub(super) fn none() -> Self {
        let (looked_up, was_heard) = (BTreeSet::new(), true);
        Self { records: Ok(PauseRecords::new()), looked_up, was_heard, read_at: Instant::now() }
    }

    /// A heartbeat has arrived, so something may be resumed. If it is paused again, that is looked up again.
    pub(super) fn forget_ended(&mut self, roster: &Roster, now: i64) {
        if !self.looked_up.is_empty() {
            let present = paused(&roster.members(Program::Worker, now));
            self.looked_up.retain(|key| present.contains(key));
        }
    }
}

impl FleetMonitor {
    /// Reads who paused what, whenever that changes.
    pub(super) async fn keep_reading_pauses(self: &Arc<Self>) {
        let mut tick = ticks(INTERVAL);
        loop {
            tick.tick().await;
            let Some((looked_up, was_heard)) = self.new_pauses() else { continue };
            let records = read_pauses(&self.operator).await.map_err(|failure| failure.to_string());
            lock(&self.state).pauses = KnownPauses { records, looked_up, was_heard, read_at: Instant::now() };
        }
    }

    /// What is paused, and whether workers are heard, if it is time to look it up.
    fn new_pauses(&self) -> Option<(BTreeSet<(String, String)>, bool)> {
        let (state, now) = (lock(&self.state), now());
        let (present, is_heard) = (paused(&state.roster.members(Program::Worker, now)), state.is_heard(now));
        let is_new = !present.is_subset(&state.pauses.looked_up) || state.pauses.was_heard && !is_heard;
        let lifetime = if state.pauses.records.is_ok() { READ_AGAIN } else { TRY_AGAIN };
        let is_old = (!present.is_empty() || !is_heard) && state.pauses.read_at.elapsed() > lifetime;
        (is_new || is_old).then_some((present, is_heard))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pause_that_ends_between_two_looks_is_forgotten() {
        let (mut pauses, mut roster) = (KnownPauses::none(), Roster::new(0));
        pauses.looked_up = [("lane".to_owned(), "fast".to_owned())].into();
        let mut hear = |paused: bool, at: i64| {
            let beat = json!({
                "program": "worker", "id": "w", "incarnation": "i", "started_at": 0, "at": at, "every_ms": 2_000,
                "stance": "open", "lanes": {"fast": {"slots": 4, "paused": paused}},
            });
            roster.record(serde_json::from_value(beat).unwrap(), at);
            pauses.forget_ended(&roster, at);
            pauses.looked_up.len()
        };
        assert_eq!([hear(true, 1), hear(false, 2), hear(true, 3)], [1, 0, 0]);
    }
}
