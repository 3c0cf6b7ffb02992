//! Waiting for a stop command.

use garenne_common::shutdown::Command;
use tokio::sync::mpsc;

/// Resolves at the next stop command; commands to pause and resume are ignored.
pub(crate) async fn stop_requested(commands: &mut mpsc::Receiver<Command>) {
    while let Some(command) = commands.recv().await {
        if matches!(command, Command::Shutdown(_) | Command::Escalate) {
            return;
        }
    }
    std::future::pending::<()>().await;
}
