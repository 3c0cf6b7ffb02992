//! Counts endings by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ending::EndingKind, snapshot::Totals};

/// Kinds of endings that are counted one by one. `Finished` is the difference to all endings.
const RARE_KINDS: usize = 4;

/// Counters that are written outside of the pool's lock.
#[derive(Default)]
pub(crate) struct Counters {
    /// Tasks whose end is not counted by a worker of the runtime.
    ended_elsewhere: AtomicU64,
    by_kind: [AtomicU64; RARE_KINDS],
}

/// Endings at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    ended: u64,
    by_kind: [u64; RARE_KINDS],
}

impl Counters {
    /// Counts an ending. `by_worker` tells that a worker counts the task and only its kind is left.
    ///
    /// Called before the completion: code that observes an end also observes the free place in the queue.
    pub(crate) fn count(&self, kind: EndingKind, by_worker: bool) {
        if let Some(index) = index(kind) {
            self.by_kind[index].fetch_add(1, Ordering::Release);
        }
        if !by_worker {
            self.ended_elsewhere.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn ended_elsewhere(&self) -> u64 {
        self.ended_elsewhere.load(Ordering::Acquire)
    }

    /// `by_workers` are the tasks that workers have counted.
    pub(crate) fn read(&self, by_workers: u64) -> Counts {
        let ended = by_workers + self.ended_elsewhere();
        Counts { ended, by_kind: self.by_kind.each_ref().map(|count| count.load(Ordering::Acquire)) }
    }
}

impl Counts {
    /// The endings since `earlier`. `admitted` is left at 0.
    pub(crate) fn since(self, earlier: Self) -> Totals {
        let mut by_kind = self.by_kind;
        for (count, earlier) in by_kind.iter_mut().zip(earlier.by_kind) {
            *count -= earlier;
        }
        let [not_started, interrupted, abandoned, panicked] = by_kind;
        // A worker counts a task before its kind, other threads count the kind first. Saturating covers the
        // moment between the two.
        let finished = (self.ended - earlier.ended).saturating_sub(by_kind.iter().sum());
        Totals { admitted: 0, finished, not_started, interrupted, abandoned, panicked }
    }
}

const fn index(kind: EndingKind) -> Option<usize> {
    match kind {
        EndingKind::Finished => None,
        EndingKind::NotStarted => Some(0),
        EndingKind::Interrupted => Some(1),
        EndingKind::Abandoned => Some(2),
        EndingKind::Panicked => Some(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_the_difference_of_two_readings() {
        let counters = Counters::default();
        counters.count(EndingKind::Panicked, true);
        counters.count(EndingKind::NotStarted, false);
        let earlier = counters.read(3);
        let kinds = [
            (EndingKind::Finished, 1),
            (EndingKind::NotStarted, 2),
            (EndingKind::Interrupted, 3),
            (EndingKind::Abandoned, 4),
            (EndingKind::Panicked, 5),
        ];
        for (kind, times) in kinds {
            for _ in 0..times {
                counters.count(kind, false);
            }
        }
        let totals = counters.read(10).since(earlier);
        let expected =
            Totals { admitted: 0, finished: 8, not_started: 2, interrupted: 3, abandoned: 4, panicked: 5 };
        assert_eq!(totals, expected);
        assert_eq!(counters.read(3).since(Counts::default()).finished, 3 + 16 - 16);
    }
}
