//! Counts endings by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ending::EndingKind, snapshot::Totals};

/// Counters that are written outside of the pool's lock.
#[derive(Default)]
pub(crate) struct Counters {
    /// Tasks whose end is not counted by a worker of the runtime.
    ended_elsewhere: AtomicU64,
    /// By [`EndingKind`]. The place of `Finished` is not used: it is the difference to all endings.
    by_kind: [AtomicU64; 5],
}

impl Counters {
    /// Counts an ending. `by_worker` tells that a worker counts the task and only its kind is left.
    ///
    /// Called before the completion: code that observes an end also observes the free place in the queue.
    pub(crate) fn count(&self, kind: EndingKind, by_worker: bool) {
        if kind != EndingKind::Finished {
            self.by_kind[kind as usize].fetch_add(1, Ordering::Release);
        }
        if !by_worker {
            self.ended_elsewhere.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn ended_elsewhere(&self) -> u64 {
        self.ended_elsewhere.load(Ordering::Acquire)
    }

    /// `by_workers` are the tasks that workers have counted.
    pub(crate) fn totals(&self, admitted: u64, by_workers: u64) -> Totals {
        let ended = by_workers + self.ended_elsewhere();
        let by_kind = self.by_kind.each_ref().map(|count| count.load(Ordering::Acquire));
        let [_, not_started, interrupted, abandoned, panicked] = by_kind;
        // A worker counts a task before its kind, other threads count the kind first. Saturating covers the
        // moment between the two.
        let finished = ended.saturating_sub(not_started + interrupted + abandoned + panicked);
        Totals { admitted, finished, not_started, interrupted, abandoned, panicked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_counted_by_kind_wherever_they_are_counted() {
        let counters = Counters::default();
        counters.count(EndingKind::Panicked, true);
        counters.count(EndingKind::NotStarted, false);
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
        let expected =
            Totals { admitted: 30, finished: 11, not_started: 3, interrupted: 3, abandoned: 4, panicked: 6 };
        assert_eq!(counters.totals(30, 11), expected);
        assert_eq!(counters.ended_elsewhere(), 16);
        // The kinds are counted, the tasks not yet.
        let early = Counters::default();
        early.count(EndingKind::Panicked, true);
        assert_eq!(early.totals(1, 0).finished, 0);
    }
}
