//! Whether a worker and its lanes want new messages.

use tokio::sync::watch;

/// Whether the worker wants new messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// Messages are consumed.
    Open,
    /// No messages are consumed for now. The channel stays open and delivered tasks go on.
    Quiet,
    /// No messages are consumed any more.
    Closed,
}

/// Why a lane wants no messages although its worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneQuiet {
    /// An operator has paused the lane.
    pub(crate) is_paused: bool,
    /// Other workers serve the lane.
    pub(crate) is_standby: bool,
    /// No handler of the lane's kinds is ready.
    pub(crate) is_unready: bool,
}

/// The intake of a lane: that of the worker, or quiet while the lane has a reason.
///
/// It reads both sources itself. A copy that a task keeps up to date would change later than its source, and messages
/// that a stop requeues meanwhile would be delivered to the same worker again.
#[derive(Clone, Debug)]
pub(crate) struct LaneIntake {
    worker: watch::Receiver<Intake>,
    lane: watch::Receiver<LaneQuiet>,
}

impl LaneIntake {
    pub(crate) fn new(worker: watch::Receiver<Intake>, lane: watch::Receiver<LaneQuiet>) -> Self {
        Self { worker, lane }
    }

    /// The current intake. It is closed if the worker dropped the sender.
    pub(super) fn current(&self) -> Intake {
        if self.worker.has_changed().is_err() {
            return Intake::Closed;
        }
        match *self.worker.borrow() {
            Intake::Open if *self.lane.borrow() != LaneQuiet::default() => Intake::Quiet,
            intake => intake,
        }
    }

    /// Completes when the worker stops.
    pub(crate) async fn closed(&mut self) {
        self.wait_for(|intake| intake == Intake::Closed).await;
    }

    /// Completes when the intake satisfies `condition`, or when the worker dropped the sender.
    pub(super) async fn wait_for(&mut self, condition: impl Fn(Intake) -> bool) {
        while !condition(self.current()) {
            tokio::select! {
                biased;
                changed = self.worker.changed() => if changed.is_err() {
                    return;
                },
                Ok(()) = self.lane.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_lane_is_quiet_for_each_of_its_reasons_and_closed_with_its_worker() {
        let (worker, lane) = (watch::Sender::new(Intake::Open), watch::Sender::new(LaneQuiet::default()));
        let mut intake = LaneIntake::new(worker.subscribe(), lane.subscribe());
        assert_eq!(intake.current(), Intake::Open);
        for quiet in [
            LaneQuiet { is_paused: true, ..LaneQuiet::default() },
            LaneQuiet { is_standby: true, ..LaneQuiet::default() },
            LaneQuiet { is_unready: true, ..LaneQuiet::default() },
        ] {
            lane.send_replace(quiet);
            assert_eq!(intake.current(), Intake::Quiet);
        }
        assert!(intake.wait_for(|intake| intake == Intake::Quiet).now_or_never().is_some());
        assert!(intake.wait_for(|intake| intake == Intake::Open).now_or_never().is_none());
        drop(lane);
        assert!(
            intake.wait_for(|intake| intake == Intake::Open).now_or_never().is_none(),
            "the worker may stop"
        );
        worker.send_replace(Intake::Closed);
        assert_eq!(intake.current(), Intake::Closed);
    }

    #[tokio::test]
    async fn a_waiter_sees_a_change_of_either_source_and_the_end_of_the_worker() {
        let (worker, lane) = (watch::Sender::new(Intake::Open), watch::Sender::new(LaneQuiet::default()));
        let intake = LaneIntake::new(worker.subscribe(), lane.subscribe());
        let wait = |intake: &LaneIntake, wanted| {
            let mut intake = intake.clone();
            tokio::spawn(async move { intake.wait_for(|intake| intake == wanted).await })
        };
        let quiet = wait(&intake, Intake::Quiet);
        tokio::task::yield_now().await;
        lane.send_replace(LaneQuiet { is_paused: true, ..LaneQuiet::default() });
        quiet.await.unwrap();
        let closed = wait(&intake, Intake::Closed);
        tokio::task::yield_now().await;
        drop(worker);
        closed.await.unwrap();
        assert_eq!(intake.current(), Intake::Closed);
    }
}
