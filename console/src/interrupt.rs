//! SIGINT and SIGTERM as messages.

use garenne_common::exit::Failure;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Every SIGINT or SIGTERM from now on is one message.
///
/// # Errors
/// A signal handler cannot be installed.
pub(crate) fn interrupts() -> Result<mpsc::Receiver<()>, Failure> {
    let caught = |kind| signal(kind).map_err(anyhow::Error::from);
    let (mut interrupt, mut terminate) = (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                Some(()) = interrupt.recv() => {}
                Some(()) = terminate.recv() => {}
                else => return,
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
