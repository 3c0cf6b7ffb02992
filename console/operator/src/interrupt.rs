//! SIGINT and SIGTERM.

use garenne_common::exit::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Every SIGINT or SIGTERM from its creation on.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// Starts to catch both signals.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub fn catch() -> Result<Self, Failure> {
        let caught = |kind| signal(kind).map_err(anyhow::Error::from);
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: caught(interrupt)?, terminate: caught(terminate)? })
    }

    /// Waits for the next signal.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
