//! Everything under the pool's one lock: queued tasks, workers and the phase of the shutdown.

use std::{sync::Arc, task::Waker, time::Duration};

use tokio::time::Instant;

use super::{
    admitted_task::AdmittedTask,
    idle_workers::IdleWorkers,
    task_queue::TaskQueue,
    worker_slot::{WorkerKey, WorkerSlot},
    worker_table::WorkerTable,
};
use crate::{completion::Completion, shutdown::Phase, task::Task};

pub(crate) struct PoolState<T: Task, C: Completion<T::Output>> {
    pub(crate) phase: Phase,
    pub(crate) queue: TaskQueue<T, C>,
    /// Tasks admitted since the start; also the next sequence number.
    pub(crate) admitted: u64,
    pub(crate) workers: WorkerTable<T, C>,
    pub(crate) restarting: usize,
    pub(crate) restarts: u64,
    /// Workers whose task waits or runs on a thread.
    parked: usize,
    pub(crate) idle: IdleWorkers,
    /// Busy workers that are not parked. Only they hold batches and ended tasks that are not counted here. There
    /// are about as many as the runtime has threads.
    active: Vec<WorkerKey>,
    /// Ended tasks that are counted here.
    pub(crate) ended: u64,
    /// Whether the monitor ticks.
    pub(crate) ticking: bool,
    /// When `SoftTimeout` turns hard, and the grace period it then has.
    pub(crate) hard_at: Option<(Instant, Duration)>,
    /// Operations that still have to call completions. The pool does not close before.
    pub(crate) holds: usize,
}

/// What to do about workers once the lock is released.
#[must_use]
pub(crate) enum Scaling<T: Task, C: Completion<T::Output>> {
    None,
    Wake(Waker),
    Spawn(Arc<WorkerSlot<T, C>>),
}

impl<T: Task, C: Completion<T::Output>> PoolState<T, C> {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Open,
            queue: TaskQueue::new(),
            admitted: 0,
            workers: WorkerTable::new(),
            restarting: 0,
            restarts: 0,
            parked: 0,
            idle: IdleWorkers::default(),
            active: Vec::new(),
            ended: 0,
            ticking: false,
            hard_at: None,
            holds: 0,
        }
    }

    /// Workers that keep a thread of the runtime busy, or are about to.
    pub(crate) fn running(&self) -> usize {
        (self.workers.len() - self.idle.len()).saturating_sub(self.restarting + self.parked)
    }

    /// Finds a worker for a waiting task: an idle one, or a new one if there are fewer than `max`.
    pub(crate) fn find_worker(&mut self, max: usize) -> Scaling<T, C> {
        if let Some(waker) = self.idle.pop_newest() {
            Scaling::Wake(waker)
        } else if self.workers.len() < max && self.phase != Phase::Closed {
            Scaling::Spawn(self.workers.add())
        } else {
            Scaling::None
        }
    }

    /// Removes a worker and puts its batch back. Returns false if it was removed before.
    pub(crate) fn remove_worker(&mut self, slot: &WorkerSlot<T, C>) -> bool {
        if !self.workers.remove(slot.key) {
            return false;
        }
        self.deactivate(slot);
        self.set_parked(slot, false);
        self.idle.remove(slot.key);
        true
    }

    /// Puts the batch of a worker back into the queue.
    pub(crate) fn put_back(&mut self, slot: &WorkerSlot<T, C>) {
        self.queue.put_back(slot.lock().drain_all());
    }

    /// Puts the worker's batch back and counts the tasks that ended on it. It then holds at most its running
    /// task.
    pub(crate) fn deactivate(&mut self, slot: &WorkerSlot<T, C>) {
        let mut local = slot.lock();
        self.queue.put_back(local.drain_all());
        self.ended += std::mem::take(&mut local.uncounted);
        drop(local);
        self.forget_active(slot.key);
    }

    pub(crate) fn activate(&mut self, slot: &WorkerSlot<T, C>) {
        if !self.active.contains(&slot.key) {
            self.active.push(slot.key);
        }
    }

    /// The worker holds no batch and has no uncounted tasks.
    pub(crate) fn forget_active(&mut self, key: WorkerKey) {
        self.active.retain(|active| *active != key);
    }

    /// The active workers.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Arc<WorkerSlot<T, C>>> {
        self.active.iter().filter_map(|key| self.workers.get(*key))
    }

    /// Returns true if that changed the worker.
    pub(crate) fn set_parked(&mut self, slot: &WorkerSlot<T, C>, parked: bool) -> bool {
        let changed = slot.control.set_parked(parked) != parked;
        match (changed, parked) {
            (true, true) => self.parked += 1,
            (true, false) => self.parked -= 1,
            (false, _) => {}
        }
        changed
    }

    /// Whether `tasks` more tasks can be admitted. `ended_elsewhere` counts tasks that did not end on an active
    /// worker.
    pub(crate) fn has_room(&self, tasks: u64, limit: u64, ended_elsewhere: u64) -> bool {
        let open = self.admitted - self.ended - ended_elsewhere + tasks;
        open <= limit || open - self.uncounted() <= limit
    }

    /// Ended tasks that are counted by their workers only.
    pub(crate) fn uncounted(&self) -> u64 {
        self.active().map(|slot| slot.lock().uncounted).sum()
    }

    /// How many tasks wait, including those in batches.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.active().map(|slot| slot.lock().waiting()).sum::<usize>()
    }

    /// Removes the waiting tasks that match.
    pub(crate) fn extract(
        &mut self,
        matches: impl Fn(&AdmittedTask<T, C>) -> bool,
    ) -> Vec<AdmittedTask<T, C>> {
        // Batches first: they are older than the queue.
        let mut out = Vec::new();
        for slot in self.active() {
            out.append(&mut slot.lock().extract(&matches));
        }
        out.append(&mut self.queue.extract(matches));
        out
    }
}
