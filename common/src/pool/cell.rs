//! One worker as the others see it: what it runs, and how to reach it.

use std::{
    collections::{VecDeque, vec_deque::Drain},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    Cause, Completion, Run, Task,
    atomic::nudge::Nudge,
    entry::{Entry, extract},
    signal::Signal,
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
pub(super) struct Reach {
    /// Set under the slot's lock, for the current task only: drop it.
    pub(super) give_up: Nudge,
    /// True while the task's own code has the processor; only ever a hint.
    pub(super) polling: AtomicBool,
    /// The task waits, or runs on a thread: the worker keeps no thread of the runtime busy. Changed
    /// under the board's lock.
    pub(super) parked: AtomicBool,
    /// Leave after the current task.
    pub(super) leave: AtomicBool,
    /// Wakes a worker whose task runs on a thread that was written off.
    pub(super) abandoned: Notify,
}

impl Reach {
    fn new() -> Self {
        Self {
            give_up: Nudge::new(),
            polling: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            leave: AtomicBool::new(false),
            abandoned: Notify::new(),
        }
    }
}

pub(super) struct Slot<T: Task, C: Completion<T::Output>> {
    /// The worker's batch. While `running` is set, the first of it is the running task: it stays
    /// where it is, because moving it would cost more than running it.
    batch: VecDeque<Entry<T, C>>,
    running: Option<Running>,
    /// Tasks this worker ended and the board has not counted yet. Raised in the same step in which the
    /// task comes out, so before its completion is called: whoever learns of an end finds the room it
    /// made.
    pub(super) uncounted: u64,
    /// Which task the watch saw here last.
    pub(super) seen: Option<u64>,
}

/// What is only known of a task that runs.
#[derive(Default)]
pub(super) struct Running {
    /// Absent for a short task nobody observes: a clock read is a fifth of its cost.
    pub(super) since: Option<Instant>,
    pub(super) limit: Option<Limit>,
    /// Not of the entry, which is moved too often to be any larger.
    pub(super) label: Option<&'static str>,
}

/// When a task that is to stop will be given up.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) cause: Cause,
    pub(super) give_up: Instant,
    /// The worker was asked to drop the future.
    pub(super) asked: bool,
}

/// The running task, still in its slot.
pub(super) struct Current<'a, T: Task, C: Completion<T::Output>> {
    pub(super) entry: &'a Entry<T, C>,
    pub(super) running: &'a mut Running,
}

/// The task that ran, out of its slot. Whoever took it out tells its owner the end.
pub(super) struct Ended<T: Task, C: Completion<T::Output>> {
    pub(super) entry: Entry<T, C>,
    pub(super) running: Running,
}

impl Running {
    /// Why the task itself was told to stop; a short one never is.
    pub(super) fn told(&self, run: Run) -> Option<Cause> {
        match run {
            Run::Short => None,
            Run::Long { .. } => self.limit.map(|limit| limit.cause),
        }
    }
}

impl<T: Task, C: Completion<T::Output>> Current<'_, T, C> {
    /// Limits what is left to the task. A later order may shorten what is left, never lengthen it.
    /// True when the task is now to be told for the first time.
    pub(super) fn limit(&mut self, cause: Cause, now: Instant, grace: Duration) -> bool {
        // Only a shutdown leaves a short task behind.
        if matches!(self.entry.run, Run::Short) && cause != Cause::Shutdown {
            return false;
        }
        let give_up = now + grace;
        match &mut self.running.limit {
            Some(limit) => {
                limit.give_up = limit.give_up.min(give_up);
                false
            }
            None => {
                self.running.limit = Some(Limit { cause, give_up, asked: false });
                matches!(self.entry.run, Run::Long { .. })
            }
        }
    }
}

impl<T: Task, C: Completion<T::Output>> Slot<T, C> {
    pub(super) fn current(&mut self) -> Option<Current<'_, T, C>> {
        let entry = self.batch.front()?;
        self.running.as_mut().map(|running| Current { entry, running })
    }

    /// Takes the running task out.
    pub(super) fn finish(&mut self) -> Option<Ended<T, C>> {
        let running = self.running.take()?;
        self.batch.pop_front().map(|entry| Ended { entry, running })
    }

    /// The next of the batch, to be marked as running. Nothing may be running.
    pub(super) fn start(&mut self) -> Option<(&mut Entry<T, C>, &mut Running)> {
        let entry = self.batch.front_mut()?;
        Some((entry, self.running.insert(Running::default())))
    }

    pub(super) fn push_first(&mut self, entry: Entry<T, C>) {
        self.batch.push_front(entry);
    }

    pub(super) fn extend(&mut self, entries: impl Iterator<Item = Entry<T, C>>) {
        self.batch.extend(entries);
    }

    /// How many wait behind the running task.
    pub(super) fn waiting(&self) -> usize {
        self.batch.len() - usize::from(self.running.is_some())
    }

    /// Takes out the first `most` that wait.
    pub(super) fn drain(&mut self, most: usize) -> Drain<'_, Entry<T, C>> {
        let first = usize::from(self.running.is_some());
        self.batch.drain(first..(first + most).min(self.batch.len()))
    }

    /// Takes out what matches of that which waits.
    pub(super) fn extract(&mut self, matches: impl Fn(&Entry<T, C>) -> bool) -> Vec<Entry<T, C>> {
        let running = if self.running.is_some() { self.batch.pop_front() } else { None };
        let out = extract(&mut self.batch, matches);
        if let Some(running) = running {
            self.batch.push_front(running);
        }
        out
    }
}

impl<T: Task, C: Completion<T::Output>> Cell<T, C> {
    pub(super) fn new(name: u64, index: usize) -> Self {
        Self {
            name,
            index,
            signal: Arc::new(Signal::new()),
            reach: Reach::new(),
            slot: Mutex::new(Slot { batch: VecDeque::new(), running: None, uncounted: 0, seen: None }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slot<T, C>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the worker to drop the current task's future. The caller holds the slot's lock.
    pub(super) fn ask_to_drop(&self) {
        self.reach.give_up.set();
    }
}
