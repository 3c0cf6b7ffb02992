//! Cancels the long tasks of a worker.
//!
//! A worker has one signal for all of its tasks, so that a task costs no allocation. Each task has an epoch.
//! A context that outlives its task (moved into a spawned future, for example) has an old epoch: it neither
//! observes the cancellation of a later task nor causes one.

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    atomic::cancel_state::{CancelState, Epoch},
    ending::Cause,
};

pub(crate) struct CancelSignal {
    pub(crate) state: CancelState<CancellationToken>,
    cancelled: Notify,
}

impl CancelSignal {
    pub(crate) fn new() -> Self {
        Self { state: CancelState::new(), cancelled: Notify::new() }
    }

    /// Cancels the task of `epoch`. Does nothing if the task has ended or was cancelled before.
    pub(crate) fn cancel(&self, epoch: Epoch, cause: Cause) {
        if let Ok(token) = self.state.cancel(epoch, bits(cause)) {
            self.cancelled.notify_waiters();
            if let Some(token) = token {
                token.cancel();
            }
        }
    }

    /// Why the task of `epoch` was cancelled; `None` if it was not.
    pub(crate) fn cause(&self, epoch: Epoch) -> Option<Cause> {
        let found = self.state.cause(epoch);
        [Cause::Deadline, Cause::Stopped, Cause::Shutdown].into_iter().find(|cause| bits(*cause) == found)
    }

    /// Waits until the task of `epoch` is cancelled.
    pub(crate) async fn cancelled(&self, epoch: Epoch) -> Cause {
        loop {
            // Created before the check: `notify_waiters` completes every future that exists, even if it was not polled.
            let cancelled = self.cancelled.notified();
            if let Some(cause) = self.cause(epoch) {
                return cause;
            }
            cancelled.await;
        }
    }

    /// A token that is cancelled together with the task of `epoch`.
    pub(crate) fn token(&self, epoch: Epoch) -> CancellationToken {
        let token = CancellationToken::new();
        if self.state.register(epoch, token.clone()) {
            token.cancel();
        }
        token
    }
}

/// A cause in the low bits of a [`CancelState`], where 0 means that the task was not cancelled.
const fn bits(cause: Cause) -> u8 {
    cause as u8 + 1
}
