//! Consuming a lane that an operator may pause.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use garenne_common::supervise;
use tokio::sync::watch;

use crate::{consumer::Intake, fleet::Member, pipeline::LanePool};

/// What the task that follows a lane's pause works on.
struct PausableLane {
    lane: Arc<str>,
    pool: LanePool,
    member: Arc<Member>,
    /// The intake of the worker.
    worker: watch::Receiver<Intake>,
    pauses_changed: watch::Receiver<()>,
    /// The intake of the lane.
    intake: watch::Sender<Intake>,
}

/// The intake of a lane: quiet while the lane is paused, otherwise as that of the worker.
///
/// A worker joins the fleet before it consumes, so a lane that is paused already is never consumed.
pub(super) fn pausable_intake(
    lane: &Arc<str>,
    pool: &LanePool,
    member: &Arc<Member>,
    worker: watch::Receiver<Intake>,
) -> watch::Receiver<Intake> {
    // Before the pauses are read, so that no change is missed.
    let pauses_changed = member.directives.lane_pauses_changed();
    let (lane, member, pool) = (Arc::clone(lane), Arc::clone(member), pool.clone());
    let (intake, receiver) = watch::channel(Intake::Quiet);
    let mut state = PausableLane { lane, pool, member, worker, pauses_changed, intake };
    state.update();
    supervise::restarting("lane-pause", state, |state| state.run().boxed()).spawn().detach();
    receiver
}

impl PausableLane {
    /// Follows the pause until the worker's intake is closed.
    async fn run(&mut self) {
        loop {
            self.update();
            if *self.intake.borrow() == Intake::Closed {
                return;
            }
            tokio::select! {
                changed = self.worker.changed() => if changed.is_err() {
                    self.intake.send_replace(Intake::Closed);
                    return;
                },
                // The sender lives as long as the member.
                _ = self.pauses_changed.changed() => {}
            }
        }
    }

    /// Updates the lane's intake. Tasks of a paused lane that wait in the pool go back to their queue; those that are
    /// on their way to the pool do so before they start.
    fn update(&mut self) {
        let is_paused = self.member.directives.is_lane_paused(&self.lane);
        let wanted = *self.worker.borrow_and_update();
        let new = if is_paused && wanted == Intake::Open { Intake::Quiet } else { wanted };
        let changed = self.intake.send_if_modified(|current| std::mem::replace(current, new) != new);
        if changed {
            tracing::info!(lane = %self.lane, paused = is_paused, intake = ?new, "the lane's intake changed");
        }
        if is_paused {
            self.pool.hand_back_waiting(Duration::ZERO);
        }
    }
}
