//! Commands to stop, from signals.

use garenne_common::{
    exit::{Exit, Failure},
    shutdown::{Command, Mode, signal},
};
use tokio::sync::mpsc;

pub(crate) use garenne_common::shutdown::stop_requested;

/// Catches signals from now on, and returns the channel of their commands.
///
/// Call it after everything that blocks the thread, such as opening standard input: until then a signal ends the
/// process.
///
/// # Errors
/// The OS refuses a signal handler.
pub fn commands(mode: Mode) -> Result<(mpsc::Sender<Command>, mpsc::Receiver<Command>), Failure> {
    signal::commands(mode)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot install signal handlers: {error}")))
}
