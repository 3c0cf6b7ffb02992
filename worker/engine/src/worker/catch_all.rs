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
    consumer::Intake,
    fleet::{CATCH_ALL_CHECK_INTERVAL, Member},
};

/// The intake of the catch-all lane in a worker without a handler for its tasks: quiet while another worker serves
/// the lane, otherwise as `intake`.
pub(super) fn standby_intake(
    member: Arc<Member>,
    intake: watch::Receiver<Intake>,
) -> watch::Receiver<Intake> {
    let (sender, receiver) = watch::channel(Intake::Quiet);
    let state = (member, intake, sender);
    supervise::restarting("catch-all-standby", state, |(member, intake, sender)| {
        update_intake(member, intake, sender).boxed()
    })
    .spawn()
    .detach();
    receiver
}

/// Updates the lane's intake until the worker's intake is closed.
async fn update_intake(
    member: &Arc<Member>,
    intake: &mut watch::Receiver<Intake>,
    sender: &watch::Sender<Intake>,
) {
    while *sender.borrow() != Intake::Closed {
        let wanted = *intake.borrow_and_update();
        let update = async {
            let is_left = wanted == Intake::Open && member.others_serve_catch_all(None).await;
            let new = if is_left { Intake::Quiet } else { wanted };
            sender.send_if_modified(|current| std::mem::replace(current, new) != new);
            sleep(CATCH_ALL_CHECK_INTERVAL).await;
        };
        // A stop does not wait for the answer of the broker.
        tokio::select! {
            biased;
            changed = intake.changed() => if changed.is_err() {
                sender.send_replace(Intake::Closed);
            },
            () = update => {}
        }
    }
}
