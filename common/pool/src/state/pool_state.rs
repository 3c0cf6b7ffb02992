//! Everything under the pool's one lock: queued tasks, workers and the phase of the shutdown.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    task::AdmittedTask,
    task_queue::TaskQueue,
    worker_slot::{WorkerKey, WorkerSlot},
    workers::{Mode, Workers},
};
use crate::{pool_types::PoolTypes, shutdown::Phase};

/// The state while its lock is held.
pub(crate) type LockedState<'a, P> = MutexGuard<'a, PoolState<P>>;

#[derive(Default)]
pub(crate) struct PoolState<P: PoolTypes> {
    pub(crate) phase: Phase,
    pub(crate) queue: TaskQueue<P>,
    /// Tasks admitted since the start; also the next sequence number.
    pub(crate) admitted: u64,
    pub(crate) workers: Workers<P>,
    pub(crate) restarts: u64,
    /// Workers that took a task and run. Only they hold batches and ended tasks that are not counted here. There are
    /// about as many as the runtime has threads.
    active: Vec<WorkerKey>,
    /// Workers that were replaced because they did not come, and have not come since.
    pub(crate) replaced: usize,
    /// Ended tasks that are counted here.
    pub(crate) ended: u64,
    /// Whether the monitor ticks.
    pub(crate) ticking: bool,
    /// When `SoftTimeout` turns hard, and the grace period it then has.
    pub(crate) hard_at: Option<(Instant, Duration)>,
    /// Operations that still have to call completions. The pool does not close before.
    pub(crate) holds: usize,
}

impl<P: PoolTypes> PoolState<P> {
    /// Removes a worker and puts its batch back. Returns false if it was removed before.
    pub(crate) fn remove_worker(&mut self, slot: &WorkerSlot<P>) -> bool {
        let found = self.workers.remove(slot.key);
        if found {
            self.deactivate(slot);
        }
        found
    }

    /// The worker parks or restarts.
    pub(crate) fn pause(&mut self, slot: &WorkerSlot<P>, mode: Mode) {
        self.deactivate(slot);
        self.workers.set_mode(slot.key, mode);
    }

    /// The worker goes on after a pause.
    pub(crate) fn resume(&mut self, slot: &WorkerSlot<P>) {
        if self.workers.set_mode(slot.key, Mode::Running) {
            self.activate(slot);
        }
    }

    /// Puts the worker's batch back and counts the tasks that ended on it. It then holds at most its running
    /// task.
    fn deactivate(&mut self, slot: &WorkerSlot<P>) {
        let mut local = slot.lock();
        self.queue.put_back(local.drain(usize::MAX));
        self.ended += std::mem::take(&mut local.uncounted);
        drop(local);
        self.forget_active(slot.key);
    }

    pub(crate) fn activate(&mut self, slot: &WorkerSlot<P>) {
        if !self.active.contains(&slot.key) {
            self.active.push(slot.key);
        }
    }

    /// The worker holds no batch and has no uncounted tasks.
    pub(crate) fn forget_active(&mut self, key: WorkerKey) {
        self.active.retain(|active| *active != key);
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &Arc<WorkerSlot<P>>> {
        self.active.iter().filter_map(|key| self.workers.get(*key))
    }

    /// The workers that were called for a task and have not come for it.
    pub(crate) fn called(&self) -> impl Iterator<Item = &Arc<WorkerSlot<P>>> {
        self.workers.running().filter(|slot| !self.active.contains(&slot.key))
    }

    /// Ended tasks that are counted by their workers only.
    pub(crate) fn uncounted(&self) -> u64 {
        self.active().map(|slot| slot.lock().uncounted).sum()
    }

    /// How many tasks wait, including those in batches.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.active().map(|slot| slot.lock().waiting()).sum::<usize>()
    }

    /// Whether a task waits for a worker, in the queue or in a batch.
    pub(crate) fn tasks_wait(&self) -> bool {
        self.queue.has_tasks() || self.active().any(|slot| slot.lock().waiting() > 0)
    }

    /// Removes the waiting tasks that match.
    pub(crate) fn extract(&mut self, matches: impl Fn(&AdmittedTask<P>) -> bool) -> Vec<AdmittedTask<P>> {
        // Batches first: they are older than the queue.
        let mut out = Vec::new();
        for slot in self.active() {
            out.append(&mut slot.lock().extract(&matches));
        }
        out.append(&mut self.queue.extract(matches));
        out
    }
}
