//! Which task a worker runs, and whether and why that task was told to stop.

use super::primitives::{AtomicU64, Mutex, Ordering};

/// Which task of the worker; the low bits are free for the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

const CAUSE_BITS: u64 = 0b11;
const STEP: u64 = CAUSE_BITS + 1;

/// `K` is what a task that asks for it is told by: a token, made only when asked for, so that never
/// one task's token is in another's hands.
pub(crate) struct Told<K> {
    /// Epoch of the running task, with the cause (1 to 3) in the low bits once it was told.
    state: AtomicU64,
    asked: Mutex<Option<(Epoch, K)>>,
}

impl<K: Clone> Told<K> {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU64::new(0), asked: Mutex::new(None) }
    }

    /// Opens the next epoch. Only the worker calls this, between two tasks.
    pub(crate) fn begin(&self) -> Epoch {
        let next = (self.state.load(Ordering::Relaxed) & !CAUSE_BITS) + STEP;
        // An exchange, so that in no order an exchange for the old epoch comes after it.
        self.state.swap(next, Ordering::AcqRel);
        Epoch(next)
    }

    /// The epoch that is open.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.state.load(Ordering::Acquire) & !CAUSE_BITS)
    }

    /// Tells the task of that epoch, and answers what else to tell it by; `Err` when it is over or
    /// was told already.
    pub(crate) fn tell(&self, epoch: Epoch, cause: u8) -> Result<Option<K>, ()> {
        let told = epoch.0 | u64::from(cause);
        let exchange = self.state.compare_exchange(epoch.0, told, Ordering::AcqRel, Ordering::Relaxed);
        exchange.map_err(drop)?;
        let asked = self.asked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(asked.as_ref().filter(|(by, _)| *by == epoch).map(|(_, key)| key.clone()))
    }

    /// Why the task of that epoch was told, if it was; 0 when not.
    pub(crate) fn cause(&self, epoch: Epoch) -> u8 {
        let state = self.state.load(Ordering::Acquire);
        // Two bits always fit.
        if state & !CAUSE_BITS == epoch.0 { (state & CAUSE_BITS) as u8 } else { 0 }
    }

    /// The task of that epoch asks to be told by `key` too. True when it has been told already:
    /// whoever told it may have found nothing here.
    pub(crate) fn ask(&self, epoch: Epoch, key: K) -> bool {
        if self.epoch() == epoch {
            *self.asked.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some((epoch, key));
        }
        self.cause(epoch) != 0
    }
}
