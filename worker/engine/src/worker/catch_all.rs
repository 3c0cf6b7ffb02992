//! Consuming the catch-all lane.
//!
//! Every worker that works on the catch-all lane consumes it, so that a task of a kind that nobody has becomes a dead
//! letter. But a worker without a handler for any of its tasks could only pass them on. It leaves the lane to workers
//! that have such handlers as long as one of them runs.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use garenne_common::supervise;
use tokio::{sync::watch, time::interval};

use crate::{consumer::Intake, fleet::Member};

/// How often the worker checks whether another one serves the lane.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The intake of the catch-all lane in a worker without a handler for its tasks: quiet while another worker serves
/// the lane, otherwise as `intake`.
pub(super) fn standby_intake(
    member: Arc<Member>,
    intake: watch::Receiver<Intake>,
) -> watch::Receiver<Intake> {
    let (sender, receiver) = watch::channel(Intake::Quiet);
    let standby = Standby { member, intake, sender };
    supervise::restarting("catch-all-standby", standby, |standby| standby.run().boxed()).spawn().detach();
    receiver
}

struct Standby {
    member: Arc<Member>,
    intake: watch::Receiver<Intake>,
    sender: watch::Sender<Intake>,
}

impl Standby {
    /// Updates the lane's intake until the worker's intake is closed.
    async fn run(&mut self) {
        let mut check = interval(CHECK_INTERVAL);
        loop {
            let intake = *self.intake.borrow_and_update();
            let intake = match intake {
                Intake::Open if self.member.leaves_catch_all_to_others().await => Intake::Quiet,
                intake => intake,
            };
            self.sender.send_if_modified(|current| std::mem::replace(current, intake) != intake);
            if intake == Intake::Closed {
                return;
            }
            tokio::select! {
                changed = self.intake.changed() => if changed.is_err() {
                    self.sender.send_replace(Intake::Closed);
                    return;
                },
                _ = check.tick() => {}
            }
        }
    }
}
