//! How a long task is told to stop.
//!
//! A worker owns one signal for all its tasks, so that a task costs no allocation. Each task has an
//! epoch; whatever was kept of an earlier task (a context moved into a spawned future) no longer
//! matches and neither hears nor causes anything.

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Cause, atomic::told::Told};

pub(super) use super::atomic::told::Epoch;

pub(super) struct Signal {
    told: Told<CancellationToken>,
    woken: Notify,
}

impl Signal {
    pub(super) fn new() -> Self {
        Self { told: Told::new(), woken: Notify::new() }
    }

    /// Opens the next epoch. Only the worker calls this, between two tasks.
    pub(super) fn begin(&self) -> Epoch {
        self.told.begin()
    }

    /// The epoch that is open.
    pub(super) fn epoch(&self) -> Epoch {
        self.told.epoch()
    }

    /// Tells the task of that epoch, unless it is over or was told already.
    pub(super) fn tell(&self, epoch: Epoch, cause: Cause) {
        if let Ok(token) = self.told.tell(epoch, encode(cause)) {
            self.woken.notify_waiters();
            if let Some(token) = token {
                token.cancel();
            }
        }
    }

    /// Why the task of that epoch was told, if it was.
    pub(super) fn cause(&self, epoch: Epoch) -> Option<Cause> {
        decode(self.told.cause(epoch))
    }

    pub(super) async fn told(&self, epoch: Epoch) -> Cause {
        loop {
            let woken = self.woken.notified();
            tokio::pin!(woken);
            // Registered before the check, so that a tell in between is not missed.
            woken.as_mut().enable();
            if let Some(cause) = self.cause(epoch) {
                return cause;
            }
            woken.await;
        }
    }

    pub(super) fn token(&self, epoch: Epoch) -> CancellationToken {
        let token = CancellationToken::new();
        if self.told.ask(epoch, token.clone()) {
            token.cancel();
        }
        token
    }
}

const fn encode(cause: Cause) -> u8 {
    match cause {
        Cause::Deadline => 1,
        Cause::Stopped => 2,
        Cause::Shutdown => 3,
    }
}

const fn decode(bits: u8) -> Option<Cause> {
    match bits {
        1 => Some(Cause::Deadline),
        2 => Some(Cause::Stopped),
        3 => Some(Cause::Shutdown),
        _ => None,
    }
}
