//! SIGINT and SIGTERM.

use garenne_common::exit::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Every SIGINT or SIGTERM from its creation on.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// Starts to catch both signals.
    pub fn catch() -> Result<Self, Failure> {
        let caught = |kind| signal(kind).map_err(anyhow::Error::from);
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: caught(interrupt)?, terminate: caught(terminate)? })
    }

    /// Waits for two signals. The first one cancels `stop`, so that what is in flight is completed.
    pub async fn twice(&mut self, stop: &CancellationToken) {
        self.recv().await;
        stop.cancel();
        self.recv().await;
    }

    /// Waits for the next signal.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
