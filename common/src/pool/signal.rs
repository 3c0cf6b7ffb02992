//! How a long task is told to stop.
//!
//! A worker owns one signal for all its tasks, so that a task costs no allocation. Each task has an
//! epoch; whatever was kept of an earlier task (a context moved into a spawned future) no longer
//! matches and neither hears nor causes anything.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Cause;

/// Which task of the worker; the low bits are free for the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u64);

const CAUSE_BITS: u64 = 0b11;
const STEP: u64 = CAUSE_BITS + 1;

#[derive(Default)]
pub(super) struct Signal {
    /// Epoch of the running task, with the cause in the low bits once it was told.
    state: AtomicU64,
    woken: Notify,
    /// Made only when the task asks for one, so never one task's token in another's hands.
    token: Mutex<Option<(Epoch, CancellationToken)>>,
}

impl Signal {
    /// Opens the next epoch. Only the worker calls this, between two tasks.
    pub(super) fn begin(&self) -> Epoch {
        let next = (self.state.load(Ordering::Relaxed) & !CAUSE_BITS) + STEP;
        self.state.store(next, Ordering::Release);
        Epoch(next)
    }

    /// The epoch that is open.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.state.load(Ordering::Acquire) & !CAUSE_BITS)
    }

    /// Tells the task of that epoch; false when it is over or was told already.
    pub(super) fn tell(&self, epoch: Epoch, cause: Cause) -> bool {
        let told = epoch.0 | encode(cause);
        if self.state.compare_exchange(epoch.0, told, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.woken.notify_waiters();
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((asked, token)) = token
            && asked == epoch
        {
            token.cancel();
        }
        true
    }

    /// Why the task of that epoch was told, if it was.
    pub(super) fn cause(&self, epoch: Epoch) -> Option<Cause> {
        let state = self.state.load(Ordering::Acquire);
        if state & !CAUSE_BITS == epoch.0 { decode(state & CAUSE_BITS) } else { None }
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
        if self.state.load(Ordering::Acquire) & !CAUSE_BITS == epoch.0 {
            *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some((epoch, token.clone()));
        }
        // Told between the two lines above, or before: `tell` found no token to cancel.
        if self.cause(epoch).is_some() {
            token.cancel();
        }
        token
    }
}

const fn encode(cause: Cause) -> u64 {
    match cause {
        Cause::Deadline => 1,
        Cause::Stopped => 2,
        Cause::Shutdown => 3,
    }
}

const fn decode(bits: u64) -> Option<Cause> {
    match bits {
        1 => Some(Cause::Deadline),
        2 => Some(Cause::Stopped),
        3 => Some(Cause::Shutdown),
        _ => None,
    }
}
