//! Whether a worker or one of its lanes wants new messages.

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

/// The current intake. It is closed if the worker dropped the sender.
pub(super) fn current_intake(intake: &watch::Receiver<Intake>) -> Intake {
    if intake.has_changed().is_err() { Intake::Closed } else { *intake.borrow() }
}

/// Completes when the intake satisfies `condition`, or when the worker dropped the sender.
pub(super) async fn wait_for_intake(
    intake: &mut watch::Receiver<Intake>,
    condition: impl Fn(Intake) -> bool,
) {
    let _ = intake.wait_for(|intake| condition(*intake)).await;
}
