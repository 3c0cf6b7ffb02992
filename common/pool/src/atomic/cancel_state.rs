//! Which task a worker runs, and whether and why that task was cancelled.

use super::primitives::{AtomicU64, Mutex, Ordering};

/// Identifies one task of a worker. The low bits are free for the cause of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

const CAUSE_BITS: u64 = 0b11;
const STEP: u64 = CAUSE_BITS + 1;

/// The cancellation state of a worker's current task.
///
/// `K` is the cancellation token of a task. It is created only if the task asks for it, and it is stored with
/// the task's epoch, so that cancelling one task never cancels the token of another.
pub(crate) struct CancelState<K> {
    /// Epoch of the running task. A cause (1 to 3) in the low bits means that the task was cancelled.
    state: AtomicU64,
    token: Mutex<Option<(Epoch, K)>>,
}

impl<K: Clone> CancelState<K> {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU64::new(0), token: Mutex::new(None) }
    }

    /// Starts the next epoch. Only the worker calls this, between two tasks.
    pub(crate) fn begin(&self) -> Epoch {
        let next = (self.state.load(Ordering::Relaxed) & !CAUSE_BITS) + STEP;
        // A swap instead of a store: no compare-exchange for the old epoch can succeed after it.
        self.state.swap(next, Ordering::AcqRel);
        Epoch(next)
    }

    /// The current epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.state.load(Ordering::Acquire) & !CAUSE_BITS)
    }

    /// Cancels the task of `epoch` and returns its token, if it has one. Returns `Err` if the task has ended
    /// or was cancelled before.
    pub(crate) fn cancel(&self, epoch: Epoch, cause: u8) -> Result<Option<K>, ()> {
        let cancelled = epoch.0 | u64::from(cause);
        let exchange = self.state.compare_exchange(epoch.0, cancelled, Ordering::AcqRel, Ordering::Relaxed);
        exchange.map_err(drop)?;
        let token = self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(token.as_ref().filter(|(of, _)| *of == epoch).map(|(_, token)| token.clone()))
    }

    /// Why the task of `epoch` was cancelled; 0 if it was not.
    pub(crate) fn cause(&self, epoch: Epoch) -> u8 {
        let state = self.state.load(Ordering::Acquire);
        // Two bits always fit into a byte.
        if state & !CAUSE_BITS == epoch.0 { (state & CAUSE_BITS) as u8 } else { 0 }
    }

    /// Registers the token of the task of `epoch`. Returns true if the task was cancelled before: the caller
    /// must then cancel the token itself, because [`cancel`](Self::cancel) may not have found it.
    pub(crate) fn register(&self, epoch: Epoch, token: K) -> bool {
        if self.epoch() == epoch {
            *self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some((epoch, token));
        }
        self.cause(epoch) != 0
    }
}
