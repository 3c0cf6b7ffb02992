//! The monitor's present knowledge.

use garenne_operator::{operator::Operator, queues::Snapshot};

use super::{history::SampleHistory, lane, sample::Sample};
use crate::fleet::Roster;

/// The state behind the monitor's lock.
pub(super) struct MonitorState {
    pub(super) roster: Roster,
    pub(super) history: SampleHistory,
    /// The newest snapshot of the queues.
    pub(super) snapshot: Option<Snapshot>,
    /// Why the last snapshot failed; `None` after a successful one.
    pub(super) queue_problem: Option<String>,
    /// Why no heartbeats arrive; `None` while the listener is connected.
    pub(super) fleet_problem: Option<String>,
    /// Unroutable messages since the console started.
    pub(super) unroutable: u64,
}

impl MonitorState {
    /// `checks` tells whether workers can be told from processes that only claim to be some.
    pub(super) fn new(checks: bool, now: i64) -> Self {
        Self {
            roster: if checks { Roster::checking(now) } else { Roster::new(now) },
            history: SampleHistory::default(),
            snapshot: None,
            queue_problem: Some("no snapshot yet".to_owned()),
            fleet_problem: Some("not connected yet".to_owned()),
            unroutable: 0,
        }
    }

    /// Adds a sample of the given queues and the known processes to the history.
    pub(super) fn record(&mut self, operator: &Operator, snapshot: Snapshot, now: i64) {
        self.unroutable += match &self.snapshot {
            Some(before) => newly_unroutable(&snapshot, before),
            None => snapshot.unroutable.ready,
        };
        if let Some(workers) = &snapshot.control_queues {
            self.roster.confirm_listed(workers.clone(), now);
        }
        let lane = |status| lane::sample(operator, &self.roster, &self.history, status, now);
        let lanes = snapshot.lanes.iter().map(|status| (status.name.clone(), lane(status))).collect();
        let sample = Sample {
            at: now,
            lanes,
            totals: self.roster.totals().clone(),
            dead: snapshot.dead.held(),
            quarantine: snapshot.quarantine.held(),
            unroutable: snapshot.unroutable.ready,
        };
        self.history.push(sample);
        self.snapshot = Some(snapshot);
    }
}

/// Messages that became unroutable between two snapshots. Without the broker's counter the growth of the queue
/// stands in for it.
fn newly_unroutable(now: &Snapshot, before: &Snapshot) -> u64 {
    let (now, before) = (&now.unroutable, &before.unroutable);
    match (now.published, before.published) {
        (Some(now), Some(before)) => now.saturating_sub(before),
        // The broker has no counter until the first message arrives.
        (Some(now), None) => now,
        _ => now.ready.saturating_sub(before.ready),
    }
}
