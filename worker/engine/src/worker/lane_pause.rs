//! Pauses of a lane by an operator.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use garenne_common::supervise;
use tokio::sync::watch;

use crate::{
    consumer::{Intake, LaneQuiet},
    fleet::Member,
    pipeline::LanePool,
};

/// The state of the task that follows a lane's pause.
struct PausableLane {
    lane: Arc<str>,
    pool: LanePool,
    member: Arc<Member>,
    /// The intake of the worker.
    worker: watch::Receiver<Intake>,
    pauses_changed: watch::Receiver<()>,
    quiet: watch::Sender<LaneQuiet>,
}

/// Keeps the lane quiet while it is paused.
///
/// A worker joins the fleet before it consumes, so a lane that is paused already is never consumed.
pub(super) fn follow_pauses(
    lane: &Arc<str>,
    pool: &LanePool,
    member: &Arc<Member>,
    worker: watch::Receiver<Intake>,
    quiet: watch::Sender<LaneQuiet>,
) {
    // Before the pauses are read, so that no change is missed.
    let pauses_changed = member.directives.lane_pauses_changed();
    let (lane, member, pool) = (Arc::clone(lane), Arc::clone(member), pool.clone());
    let state = PausableLane { lane, pool, member, worker, pauses_changed, quiet };
    state.update();
    supervise::restarting("lane-pause", state, |state| state.run().boxed()).spawn().detach();
}

impl PausableLane {
    /// Follows the pause until the worker's intake is closed.
    async fn run(&mut self) {
        loop {
            self.update();
            tokio::select! {
                biased;
                _ = self.worker.wait_for(|intake| *intake == Intake::Closed) => return,
                // The sender lives as long as the member.
                _ = self.pauses_changed.changed() => {}
            }
        }
    }

    /// Updates the lane. Tasks of a paused lane that wait in the pool go back to their queue; those that are on their
    /// way to the pool do so before they start.
    fn update(&self) {
        let is_paused = self.member.directives.is_lane_paused(&self.lane);
        let changed = self
            .quiet
            .send_if_modified(|quiet| std::mem::replace(&mut quiet.is_paused, is_paused) != is_paused);
        if changed {
            tracing::info!(lane = %self.lane, paused = is_paused, "the lane's pause changed");
        }
        if is_paused {
            self.pool.hand_back_waiting(Duration::ZERO);
        }
    }
}
