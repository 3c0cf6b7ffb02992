//! Commands to stop, from signals.

use garenne_common::{
    exit::{Exit, Failure},
    shutdown::{Command, Mode, signal},
};
use tokio::sync::mpsc;

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

/// Resolves at the next stop command; commands to pause and resume are ignored.
pub(crate) async fn stop_requested(commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        if matches!(command, Command::Shutdown(_) | Command::Escalate) {
            return;
        }
    }
    std::future::pending::<()>().await;
}
