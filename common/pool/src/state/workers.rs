//! The workers of a pool, and what each of them does.

use std::{collections::VecDeque, sync::Arc, task::Waker};

use tokio::time::Instant;

use super::worker_slot::{WorkerKey, WorkerSlot};
use crate::pool_types::PoolTypes;

/// Activity of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Runs a task or looks for one: keeps a thread of the runtime busy, or is about to.
    Running,
    /// Has no task and waits to be woken.
    Idle,
    /// Its task waits or runs on a thread, so it keeps no thread of the runtime busy.
    Parked,
    /// Pauses after a panic.
    Restarting,
}

/// The workers that have not exited and were not abandoned.
#[derive(Default)]
pub(crate) struct Workers<P: PoolTypes> {
    /// By index. The place of a removed worker is reused.
    workers: Vec<Option<(Arc<WorkerSlot<P>>, Mode)>>,
    /// How many workers are in each mode.
    counts: [usize; 4],
    /// The idle workers, in the order in which they became idle.
    idle: VecDeque<IdleWorker>,
    next_id: u64,
}

struct IdleWorker {
    key: WorkerKey,
    /// Absent for a worker that belongs to the minimum.
    since: Option<Instant>,
    waker: Waker,
}

impl<P: PoolTypes> Workers<P> {
    pub(crate) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    pub(crate) fn count(&self, mode: Mode) -> usize {
        self.counts[mode as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<WorkerSlot<P>>> {
        self.workers.iter().flatten().map(|(slot, _)| slot)
    }

    /// The workers that run a task or look for one.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Arc<WorkerSlot<P>>> {
        self.workers.iter().flatten().filter(|(_, mode)| *mode == Mode::Running).map(|(slot, _)| slot)
    }

    pub(crate) fn get(&self, key: WorkerKey) -> Option<&Arc<WorkerSlot<P>>> {
        let (slot, _) = self.workers.get(key.index)?.as_ref()?;
        (slot.key == key).then_some(slot)
    }

    pub(crate) fn add(&mut self) -> Arc<WorkerSlot<P>> {
        let index = self.workers.iter().position(Option::is_none).unwrap_or(self.workers.len());
        let slot = Arc::new(WorkerSlot::new(WorkerKey { id: self.next_id, index }));
        self.next_id += 1;
        if index == self.workers.len() {
            self.workers.push(None);
        }
        self.workers[index] = Some((Arc::clone(&slot), Mode::Running));
        self.counts[Mode::Running as usize] += 1;
        slot
    }

    /// Returns false if the worker was removed before.
    pub(crate) fn remove(&mut self, key: WorkerKey) -> bool {
        self.take_idle(key);
        let found = self.get(key).is_some();
        if found {
            self.set_mode(key, Mode::Running);
            self.counts[Mode::Running as usize] -= 1;
            self.workers[key.index] = None;
        }
        found
    }

    /// Returns true if that changed the mode. The mode of a removed worker does not change.
    pub(crate) fn set_mode(&mut self, key: WorkerKey, mode: Mode) -> bool {
        let Some(Some((slot, current))) = self.workers.get_mut(key.index) else { return false };
        if slot.key != key || *current == mode {
            return false;
        }
        self.counts[*current as usize] -= 1;
        self.counts[mode as usize] += 1;
        *current = mode;
        true
    }

    /// Registers a worker to be woken.
    pub(crate) fn become_idle(&mut self, key: WorkerKey, since: Option<Instant>, waker: Waker) {
        if self.set_mode(key, Mode::Idle) {
            self.idle.push_back(IdleWorker { key, since, waker });
        }
    }

    /// Makes the worker run that became idle last. Few workers stay warm then, and the others reach their idle timeout.
    pub(crate) fn take_newest_idle(&mut self) -> Option<Waker> {
        let idle = self.idle.pop_back()?;
        self.set_mode(idle.key, Mode::Running);
        Some(idle.waker)
    }

    /// Since when the oldest idle worker has been idle, if its idle time counts.
    pub(crate) fn oldest_idle_since(&self) -> Option<Instant> {
        self.idle.front().and_then(|idle| idle.since)
    }

    pub(crate) fn take_oldest_idle(&mut self) -> Option<(Arc<WorkerSlot<P>>, Waker)> {
        let IdleWorker { key, waker, .. } = self.idle.pop_front()?;
        self.set_mode(key, Mode::Running);
        Some((Arc::clone(self.get(key)?), waker))
    }

    /// Makes the worker run if it is idle.
    pub(crate) fn take_idle(&mut self, key: WorkerKey) -> Option<Waker> {
        // The mode saves the search of the list, which is as long as there are idle workers.
        let (slot, mode) = self.workers.get(key.index)?.as_ref()?;
        if slot.key != key || *mode != Mode::Idle {
            return None;
        }
        self.set_mode(key, Mode::Running);
        let at = self.idle.iter().position(|idle| idle.key == key)?;
        self.idle.remove(at).map(|idle| idle.waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{context::TaskContext, pool_types::TypesOf, task::Task};

    struct TestTask;

    impl Task for TestTask {
        type Output = ();

        async fn run(self, _cx: TaskContext) {}
    }

    /// Workers that became idle one after the other.
    fn idle(workers: usize) -> (Workers<TypesOf<TestTask, ()>>, Vec<WorkerKey>) {
        let mut all = Workers::default();
        let keys: Vec<_> = (0..workers).map(|_| all.add().key).collect();
        for key in &keys {
            all.become_idle(*key, None, Waker::noop().clone());
        }
        (all, keys)
    }

    #[test]
    fn a_worker_is_taken_by_its_own_key_only() {
        let (mut workers, keys) = idle(3);
        assert!(workers.take_idle(keys[0]).is_some());
        assert!(workers.remove(keys[0]));
        let other = workers.add().key;
        assert_eq!(other, WorkerKey { id: 3, index: 0 });
        // Another worker had the same place in the table, or the place is not in use.
        assert!(!workers.remove(keys[0]));
        assert!(!workers.set_mode(keys[0], Mode::Parked));
        workers.become_idle(keys[0], None, Waker::noop().clone());
        assert!(workers.take_idle(keys[0]).is_none());
        assert!(workers.take_idle(other).is_none());
        assert!(workers.take_idle(WorkerKey { id: 4, index: 7 }).is_none());
        assert_eq!((workers.len(), workers.count(Mode::Idle), workers.count(Mode::Running)), (3, 2, 1));
        assert!(workers.take_idle(keys[2]).is_some());
        assert!(workers.take_idle(keys[2]).is_none());
        assert!(workers.take_idle(keys[1]).is_some());
        assert_eq!(workers.count(Mode::Idle), 0);
    }

    #[test]
    fn a_worker_that_was_taken_is_no_longer_idle() {
        let (mut workers, keys) = idle(3);
        assert_eq!(workers.take_oldest_idle().map(|(slot, _)| slot.key), Some(keys[0]));
        assert!(workers.take_newest_idle().is_some());
        assert!(workers.take_idle(keys[0]).is_none());
        assert!(workers.take_idle(keys[2]).is_none());
        assert_eq!((workers.count(Mode::Idle), workers.count(Mode::Running)), (1, 2));
        assert_eq!(workers.take_oldest_idle().map(|(slot, _)| slot.key), Some(keys[1]));
        assert!(workers.take_oldest_idle().is_none() && workers.take_newest_idle().is_none());
    }

    #[test]
    fn only_the_idle_time_of_the_oldest_is_reported() {
        let now = Instant::now();
        let (mut workers, _) = idle(0);
        let (first, second) = (workers.add().key, workers.add().key);
        assert_eq!(workers.oldest_idle_since(), None);
        workers.become_idle(first, Some(now), Waker::noop().clone());
        workers.become_idle(second, None, Waker::noop().clone());
        assert_eq!(workers.oldest_idle_since(), Some(now));
        workers.take_oldest_idle();
        assert_eq!(workers.oldest_idle_since(), None);
    }

    #[test]
    fn a_worker_is_counted_in_one_mode() {
        let (mut workers, keys) = idle(1);
        assert!(workers.take_idle(keys[0]).is_some());
        for mode in [Mode::Parked, Mode::Restarting, Mode::Running] {
            assert!(workers.set_mode(keys[0], mode));
            assert!(!workers.set_mode(keys[0], mode));
            assert_eq!((workers.len(), workers.count(mode)), (1, 1));
        }
        assert!(workers.remove(keys[0]));
        assert_eq!(workers.len(), 0);
    }
}
