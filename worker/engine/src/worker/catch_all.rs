//! Consuming the catch-all lane.
//!
//! Every worker that works on the catch-all lane consumes it, so that a task of a kind without a handler becomes a dead
//! letter. But a worker without a handler for any of its tasks could only pass them on. It leaves the lane to workers
//! that have such handlers as long as one of them runs.

use std::sync::Arc;

use futures_util::FutureExt;
use garenne_common::supervise;
use tokio::{sync::watch, time::sleep};

use crate::{
    consumer::{Intake, LaneQuiet},
    fleet::{CATCH_ALL_CHECK_INTERVAL, Member},
};

/// Keeps the catch-all lane of a worker without a handler for its tasks quiet while another worker serves the lane.
pub(super) fn stand_by(
    member: Arc<Member>,
    worker: watch::Receiver<Intake>,
    quiet: watch::Sender<LaneQuiet>,
) {
    // Until the others are known.
    quiet.send_modify(|quiet| quiet.is_standby = true);
    let state = (member, worker, quiet);
    supervise::restarting("catch-all-standby", state, |(member, worker, quiet)| {
        update_standby(member, worker, quiet).boxed()
    })
    .spawn()
    .detach();
}

/// Updates the lane until the worker's intake is closed.
async fn update_standby(
    member: &Arc<Member>,
    worker: &mut watch::Receiver<Intake>,
    quiet: &watch::Sender<LaneQuiet>,
) {
    loop {
        let wanted = *worker.borrow_and_update();
        if wanted == Intake::Closed {
            return;
        }
        let update = async {
            if wanted == Intake::Open {
                let is_standby = member.others_serve_catch_all().await;
                quiet.send_if_modified(|quiet| {
                    std::mem::replace(&mut quiet.is_standby, is_standby) != is_standby
                });
            }
            sleep(CATCH_ALL_CHECK_INTERVAL).await;
        };
        // A stop does not wait for the answer of the broker.
        tokio::select! {
            biased;
            changed = worker.changed() => if changed.is_err() {
                return;
            },
            () = update => {}
        }
    }
}
