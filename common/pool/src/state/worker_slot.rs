//! One worker as other threads see it: the tasks it holds, and how to control it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

use super::local_queue::LocalQueue;
use crate::{atomic::wake_flag::WakeFlag, cancel_signal::CancelSignal, completion::Completion, task::Task};

/// Identifies a worker. The index is its place in the worker table and is reused, the id is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerKey {
    pub(crate) id: u64,
    pub(crate) index: usize,
}

pub(crate) struct WorkerSlot<T: Task, C: Completion<T::Output>> {
    pub(crate) key: WorkerKey,
    pub(crate) signal: Arc<CancelSignal>,
    pub(crate) control: WorkerControl,
    /// Lock order: after the pool's state.
    queue: Mutex<LocalQueue<T, C>>,
}

/// Flags that control a worker from other threads.
pub(crate) struct WorkerControl {
    /// Asks the worker to drop the current task's future. Set with the local queue locked.
    pub(crate) drop_task: WakeFlag,
    /// True while the worker is inside the task's own code. Only a hint.
    pub(crate) polling: AtomicBool,
    /// The task waits or runs on a thread, so the worker keeps no thread of the runtime busy. Changed with the
    /// pool's state locked.
    parked: AtomicBool,
    /// Asks the worker to exit after the current task.
    exit: AtomicBool,
    /// Wakes a worker whose task runs on a thread and was abandoned.
    pub(crate) abandoned: Notify,
}

impl WorkerControl {
    fn new() -> Self {
        Self {
            drop_task: WakeFlag::new(),
            polling: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            exit: AtomicBool::new(false),
            abandoned: Notify::new(),
        }
    }

    /// Returns the previous value. The caller holds the lock of the pool's state.
    pub(crate) fn set_parked(&self, parked: bool) -> bool {
        self.parked.swap(parked, Ordering::Relaxed)
    }

    pub(crate) fn request_exit(&self) {
        self.exit.store(true, Ordering::Release);
    }

    pub(crate) fn exit_requested(&self) -> bool {
        self.exit.load(Ordering::Acquire)
    }
}

impl<T: Task, C: Completion<T::Output>> WorkerSlot<T, C> {
    pub(crate) fn new(key: WorkerKey) -> Self {
        Self {
            key,
            signal: Arc::new(CancelSignal::new()),
            control: WorkerControl::new(),
            queue: Mutex::new(LocalQueue::new()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocalQueue<T, C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
