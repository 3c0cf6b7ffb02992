//! Workers without a task.

use std::{collections::VecDeque, task::Waker};

use tokio::time::Instant;

use super::worker_slot::WorkerKey;

/// The idle workers, in the order in which they became idle.
///
/// The last to become idle is woken first: few workers stay warm, the others reach their idle timeout.
#[derive(Default)]
pub(crate) struct IdleWorkers {
    list: VecDeque<IdleWorker>,
    /// The id of the listed worker, by index. Saves the search of the list, which is as long as there are idle
    /// workers, for workers that are not in it.
    present: Vec<Option<u64>>,
}

struct IdleWorker {
    key: WorkerKey,
    /// Absent for a worker that belongs to the minimum.
    since: Option<Instant>,
    waker: Waker,
}

impl IdleWorkers {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn push(&mut self, key: WorkerKey, since: Option<Instant>, waker: Waker) {
        if self.present.len() <= key.index {
            self.present.resize(key.index + 1, None);
        }
        self.present[key.index] = Some(key.id);
        self.list.push_back(IdleWorker { key, since, waker });
    }

    pub(crate) fn pop_newest(&mut self) -> Option<Waker> {
        let idle = self.list.pop_back()?;
        self.present[idle.key.index] = None;
        Some(idle.waker)
    }

    /// Since when the oldest has been idle, if its idle time counts.
    pub(crate) fn oldest_since(&self) -> Option<Instant> {
        self.list.front().and_then(|idle| idle.since)
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<(WorkerKey, Waker)> {
        let idle = self.list.pop_front()?;
        self.present[idle.key.index] = None;
        Some((idle.key, idle.waker))
    }

    pub(crate) fn remove(&mut self, key: WorkerKey) -> Option<Waker> {
        self.present.get_mut(key.index)?.take_if(|id| *id == key.id)?;
        let at = self.list.iter().position(|idle| idle.key == key)?;
        self.list.remove(at).map(|idle| idle.waker)
    }

    pub(crate) fn drain(&mut self) -> Vec<Waker> {
        self.present.fill(None);
        self.list.drain(..).map(|idle| idle.waker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u64, index: usize) -> WorkerKey {
        WorkerKey { id, index }
    }

    fn idle(keys: &[WorkerKey]) -> IdleWorkers {
        let mut idle = IdleWorkers::default();
        for key in keys {
            idle.push(*key, None, Waker::noop().clone());
        }
        idle
    }

    #[test]
    fn a_worker_is_removed_by_its_own_key_only() {
        let mut idle = idle(&[key(3, 0), key(4, 2)]);
        // Another worker had the same place in the table, or the place is not in use.
        assert!(idle.remove(key(2, 0)).is_none());
        assert!(idle.remove(key(4, 1)).is_none());
        assert!(idle.remove(key(4, 7)).is_none());
        assert_eq!(idle.len(), 2);
        assert!(idle.remove(key(4, 2)).is_some());
        assert!(idle.remove(key(4, 2)).is_none());
        assert!(idle.remove(key(3, 0)).is_some());
        assert!(idle.is_empty());
    }

    #[test]
    fn a_popped_worker_is_no_longer_present() {
        let mut idle = idle(&[key(0, 0), key(1, 1), key(2, 2)]);
        assert_eq!(idle.pop_oldest().map(|(key, _)| key), Some(key(0, 0)));
        assert!(idle.pop_newest().is_some());
        assert_eq!(idle.present, [None, Some(1), None]);
        assert_eq!(idle.drain().len(), 1);
        assert_eq!(idle.present, [None; 3]);
        assert!(idle.is_empty());
    }

    #[test]
    fn only_the_idle_time_of_the_oldest_is_reported() {
        let now = Instant::now();
        let mut idle = IdleWorkers::default();
        assert_eq!(idle.oldest_since(), None);
        idle.push(key(0, 0), Some(now), Waker::noop().clone());
        idle.push(key(1, 1), None, Waker::noop().clone());
        assert_eq!(idle.oldest_since(), Some(now));
        idle.pop_oldest();
        assert_eq!(idle.oldest_since(), None);
    }
}
