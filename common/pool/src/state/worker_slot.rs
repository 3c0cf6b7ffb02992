//! One worker as other threads see it: the tasks it holds, and how to control it.

use std::{
    collections::{VecDeque, vec_deque::Drain},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{sync::Notify, time::Instant};

use super::task::{AdmittedTask, extract};
use crate::{
    atomic::wake_flag::WakeFlag, cancel_signal::CancelSignal, ending::Cause, panic::lock,
    pool_types::PoolTypes, spec::Run,
};

/// Identifies a worker. The index is its place in the worker table and is reused, the id is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerKey {
    pub(crate) id: u64,
    pub(crate) index: usize,
}

pub(crate) struct WorkerSlot<P: PoolTypes> {
    pub(crate) key: WorkerKey,
    pub(crate) signal: Arc<CancelSignal>,
    /// Asks the worker to drop the current task's future. Set with the local queue locked.
    pub(crate) drop_task: WakeFlag,
    /// True while the worker is inside the task's own code. Only a hint.
    pub(crate) polling: AtomicBool,
    /// Asks the worker to exit after the current task.
    exit: AtomicBool,
    /// Wakes a worker whose task runs on a thread and was abandoned.
    pub(crate) abandoned: Notify,
    /// Lock order: after the pool's state.
    queue: Mutex<LocalQueue<P>>,
}

impl<P: PoolTypes> WorkerSlot<P> {
    pub(crate) fn new(key: WorkerKey) -> Self {
        Self {
            key,
            signal: Arc::new(CancelSignal::new()),
            drop_task: WakeFlag::new(),
            polling: AtomicBool::new(false),
            exit: AtomicBool::new(false),
            abandoned: Notify::new(),
            queue: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocalQueue<P>> {
        lock(&self.queue)
    }

    pub(crate) fn request_exit(&self) {
        self.exit.store(true, Ordering::Release);
    }

    pub(crate) fn exit_requested(&self) -> bool {
        self.exit.load(Ordering::Acquire)
    }
}

/// The tasks that one worker holds: the running one and a batch of queued ones.
#[derive(Default)]
pub(crate) struct LocalQueue<P: PoolTypes> {
    /// While `running` is set, the first task is the running one. It stays in place, because moving it would
    /// cost more than running it.
    tasks: VecDeque<AdmittedTask<P>>,
    running: Option<RunState>,
    /// Tasks that ended on this worker and are not yet counted by the pool. Incremented in the step that removes
    /// the task, before its completion is called: code that observes an end also observes the free place in the
    /// queue.
    pub(crate) uncounted: u64,
    /// The task that ran at the monitor's last tick.
    pub(crate) seen: Option<u64>,
    pub(crate) arrival: Arrival,
}

/// Whether a worker that was called for a task has come for it.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    #[default]
    Came,
    /// The monitor has noticed at this time that it has not come.
    Awaited(Instant),
    /// Another worker was called instead. This one exits when it comes.
    Replaced,
}

/// Properties of a running task only.
#[derive(Default)]
pub(crate) struct RunState {
    /// Absent for a short task of an unobserved pool: reading the clock is a fifth of its cost.
    pub(crate) since: Option<Instant>,
    pub(crate) limit: Option<StopLimit>,
    /// Not a field of `AdmittedTask`, which is moved too often to be larger.
    pub(crate) label: Option<&'static str>,
}

/// When a task that was told to stop is given up.
#[derive(Clone, Copy)]
pub(crate) struct StopLimit {
    pub(crate) cause: Cause,
    pub(crate) give_up_at: Instant,
    /// When the worker was asked to drop the future.
    pub(crate) drop_requested: Option<Instant>,
}

/// The running task, still in its queue.
pub(crate) struct CurrentTask<'a, P: PoolTypes> {
    pub(crate) task: &'a AdmittedTask<P>,
    pub(crate) state: &'a mut RunState,
}

/// A task that ran, removed from its queue. The code that removed it must notify its owner.
pub(crate) struct EndedTask<P: PoolTypes> {
    pub(crate) task: AdmittedTask<P>,
    pub(crate) state: RunState,
}

impl RunState {
    /// Why the task was cancelled. A short task never is, even if a hard shutdown limits its time.
    pub(crate) fn cancelled(&self, run: Run) -> Option<Cause> {
        match run {
            Run::Short => None,
            Run::Long { .. } => self.limit.map(|limit| limit.cause),
        }
    }
}

impl<P: PoolTypes> CurrentTask<'_, P> {
    /// Limits the time that is left to the task. Once it is limited, only a shutdown can shorten it further.
    /// Returns true if the task must now be cancelled for the first time.
    pub(crate) fn limit(&mut self, cause: Cause, give_up_at: Instant) -> bool {
        let is_short = matches!(self.task.spec.run, Run::Short);
        match &mut self.state.limit {
            Some(limit) => {
                if cause == Cause::Shutdown {
                    limit.give_up_at = limit.give_up_at.min(give_up_at);
                }
                false
            }
            // A short task is given up only by a shutdown.
            None if is_short && cause != Cause::Shutdown => false,
            None => {
                self.state.limit = Some(StopLimit { cause, give_up_at, drop_requested: None });
                !is_short
            }
        }
    }
}

impl<P: PoolTypes> LocalQueue<P> {
    pub(crate) fn current(&mut self) -> Option<CurrentTask<'_, P>> {
        let task = self.tasks.front()?;
        self.running.as_mut().map(|state| CurrentTask { task, state })
    }

    pub(crate) fn finish(&mut self) -> Option<EndedTask<P>> {
        let state = self.running.take()?;
        self.tasks.pop_front().map(|task| EndedTask { task, state })
    }

    /// Marks the next task as running. No task may be running.
    pub(crate) fn start(&mut self) -> Option<(&mut AdmittedTask<P>, &mut RunState)> {
        let task = self.tasks.front_mut()?;
        Some((task, self.running.insert(RunState::default())))
    }

    pub(crate) fn push_first(&mut self, task: AdmittedTask<P>) {
        self.tasks.push_front(task);
    }

    pub(crate) fn extend(&mut self, tasks: impl Iterator<Item = AdmittedTask<P>>) {
        self.tasks.extend(tasks);
    }

    /// How many tasks wait behind the running one.
    pub(crate) fn waiting(&self) -> usize {
        self.tasks.len() - usize::from(self.running.is_some())
    }

    /// Removes up to `most` waiting tasks, oldest first.
    pub(crate) fn drain(&mut self, most: usize) -> Drain<'_, AdmittedTask<P>> {
        let first = usize::from(self.running.is_some());
        self.tasks.drain(first..first.saturating_add(most).min(self.tasks.len()))
    }

    /// Removes the waiting tasks that match.
    pub(crate) fn extract(&mut self, matches: impl Fn(&AdmittedTask<P>) -> bool) -> Vec<AdmittedTask<P>> {
        let running = if self.running.is_some() { self.tasks.pop_front() } else { None };
        let out = extract(&mut self.tasks, matches);
        if let Some(running) = running {
            self.tasks.push_front(running);
        }
        out
    }
}
