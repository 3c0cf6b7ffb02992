//! How far running tasks are, as they say themselves.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Reports of running tasks, by id.
#[derive(Default)]
pub(crate) struct ProgressBoard(Mutex<HashMap<Arc<str>, Arc<AtomicU64>>>);

impl ProgressBoard {
    /// How much of a task is done, from 0 to 1; none where it has not said.
    pub(crate) fn done(&self, id: &str) -> Option<f64> {
        self.tasks().get(id).map(|done| f64::from_bits(done.load(Ordering::Relaxed)))
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Arc<AtomicU64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task's way to the board; its report goes with it. Takes no lock after the first report.
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
        // A NaN says nothing; `clamp` would keep it.
        let done = if done.is_nan() { 0.0 } else { done.clamp(0.0, 1.0) };
        let place = self.done.get_or_init(|| {
            let place = Arc::default();
            self.board.tasks().insert(Arc::clone(&self.id), Arc::clone(&place));
            place
        });
        place.store(done.to_bits(), Ordering::Relaxed);
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        let Some(place) = self.done.get() else { return };
        let mut tasks = self.board.tasks();
        // Another run of the same task may have taken the place since.
        if tasks.get(&self.id).is_some_and(|known| Arc::ptr_eq(known, place)) {
            tasks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_goes_with_its_task_and_no_other() {
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
