//! Ctrl-C and SIGTERM as something to wait for.

use garenne_common::exit::Failure;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Each SIGINT or SIGTERM from now on is one message: the first asks for an orderly end, the second
/// for an end.
///
/// # Errors
/// The system refuses a handler.
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
