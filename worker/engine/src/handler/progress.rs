//! The progress that running tasks report.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::panics::lock;

/// The latest report of each running task, by task id.
#[derive(Default)]
pub(crate) struct ProgressBoard(Mutex<BTreeMap<Arc<str>, Arc<AtomicU64>>>);

impl ProgressBoard {
    /// The fraction of a task that is done, from 0 to 1. [`None`] if it has not reported.
    pub(crate) fn done(&self, id: &str) -> Option<f64> {
        lock(&self.0).get(id).map(|done| f64::from_bits(done.load(Ordering::Relaxed)))
    }
}

/// Reports the progress of one attempt. Takes a lock only for the first report, and removes the report when
/// dropped.
pub(crate) struct ProgressReporter {
    board: Arc<ProgressBoard>,
    id: Arc<str>,
    done: OnceLock<Arc<AtomicU64>>,
}

impl ProgressReporter {
    pub(crate) fn new(board: Arc<ProgressBoard>, id: Arc<str>) -> Self {
        Self { board, id, done: OnceLock::new() }
    }

    pub(crate) fn report(&self, done: f64) {
        // `clamp` returns NaN for NaN.
        let done = if done.is_nan() { 0.0 } else { done.clamp(0.0, 1.0) };
        let slot = self.done.get_or_init(|| {
            let slot = Arc::default();
            lock(&self.board.0).insert(Arc::clone(&self.id), Arc::clone(&slot));
            slot
        });
        slot.store(done.to_bits(), Ordering::Relaxed);
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        let Some(slot) = self.done.get() else { return };
        let mut tasks = lock(&self.board.0);
        // Another attempt at the same task may have replaced the slot.
        if tasks.get(&self.id).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            tasks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_removed_with_its_attempt_and_not_with_another() {
        let board = Arc::new(ProgressBoard::default());
        let first = ProgressReporter::new(Arc::clone(&board), "t".into());
        assert_eq!(board.done("t"), None);
        first.report(0.25);
        first.report(7.0);
        assert_eq!(board.done("t"), Some(1.0));
        first.report(f64::NAN);
        assert_eq!(board.done("t"), Some(0.0));
        let again = ProgressReporter::new(Arc::clone(&board), "t".into());
        again.report(0.5);
        drop(first);
        assert_eq!(board.done("t"), Some(0.5));
        drop(again);
        assert_eq!(board.done("t"), None);
    }
}
