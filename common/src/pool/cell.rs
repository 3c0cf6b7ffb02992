//! One worker as the others see it: what it runs, and how to reach it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::{sync::Notify, time::Instant};

use super::{
    Cause, Completion, GroupName, Placement, Run, Task, TaskId,
    entry::{Entry, Owner},
    signal::{Epoch, Signal},
};

pub(super) struct Cell<T: Task, C: Completion<T::Output>> {
    /// Counts up over the life of the pool; never reused.
    pub(super) name: u64,
    /// Place in the board's table; reused.
    pub(super) index: usize,
    pub(super) signal: Arc<Signal>,
    pub(super) reach: Reach,
    /// Locked after the board where both are.
    slot: Mutex<Slot<T, C>>,
}

/// How to reach a worker that is inside a task. Free of the pool's type parameters.
#[derive(Default)]
pub(super) struct Reach {
    /// Set under the slot's lock, for the current task only: drop it.
    pub(super) give_up: AtomicBool,
    /// True while the task's own code has the processor; only ever a hint.
    pub(super) polling: AtomicBool,
    /// The task waits, or runs on a thread: the worker keeps no thread of the runtime busy. Changed
    /// under the board's lock.
    pub(super) parked: AtomicBool,
    /// Leave after the current task.
    pub(super) leave: AtomicBool,
    pub(super) waker: AtomicWaker,
    /// Wakes a worker whose task runs on a thread that was written off.
    pub(super) abandoned: Notify,
}

pub(super) struct Slot<T: Task, C: Completion<T::Output>> {
    pub(super) current: Option<Current<T, C>>,
    /// The rest of the worker's batch.
    pub(super) local: VecDeque<Entry<T, C>>,
    /// Which task the watch saw here last.
    pub(super) seen: Option<Epoch>,
}

/// The running task. Whoever takes it out of the slot tells its owner the end.
pub(super) struct Current<T: Task, C: Completion<T::Output>> {
    pub(super) id: TaskId,
    pub(super) seq: u64,
    pub(super) run: Run,
    pub(super) placement: Placement,
    pub(super) group: Option<GroupName>,
    pub(super) shard: (u32, u32),
    pub(super) epoch: Epoch,
    /// Absent for a short task nobody observes: a clock read is a fifth of its cost.
    pub(super) since: Option<Instant>,
    pub(super) deadline: Option<Instant>,
    pub(super) limit: Option<Limit>,
    pub(super) owner: Owner<T, C>,
}

/// When a task that is to stop will be given up.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) cause: Cause,
    pub(super) give_up: Instant,
    /// The worker was asked to drop the future.
    pub(super) asked: bool,
}

impl<T: Task, C: Completion<T::Output>> Current<T, C> {
    /// Why the task itself was told to stop; a short one never is.
    pub(super) fn told(&self) -> Option<Cause> {
        match self.run {
            Run::Short => None,
            Run::Long { .. } => self.limit.map(|limit| limit.cause),
        }
    }

    /// Limits what is left to the task. A later order may shorten what is left, never lengthen it.
    /// True when the task is now to be told for the first time.
    pub(super) fn limit(&mut self, cause: Cause, now: Instant, grace: Duration) -> bool {
        let give_up = now + grace;
        match &mut self.limit {
            Some(limit) => {
                limit.give_up = limit.give_up.min(give_up);
                false
            }
            None => {
                self.limit = Some(Limit { cause, give_up, asked: false });
                matches!(self.run, Run::Long { .. })
            }
        }
    }
}

impl<T: Task, C: Completion<T::Output>> Cell<T, C> {
    pub(super) fn new(name: u64, index: usize) -> Self {
        Self {
            name,
            index,
            signal: Arc::default(),
            reach: Reach::default(),
            slot: Mutex::new(Slot { current: None, local: VecDeque::new(), seen: None }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slot<T, C>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the worker to drop the current task's future. The caller holds the slot's lock.
    pub(super) fn ask_to_drop(&self) {
        self.reach.give_up.store(true, Ordering::Release);
        self.reach.waker.wake();
    }
}
