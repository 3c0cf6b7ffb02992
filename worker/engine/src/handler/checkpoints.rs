//! The checkpoints of the tasks that run, until their copies carry them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

use garenne_protocol::task::Envelope;

use crate::panics::lock;

/// Number of entries from which on those of ended tasks are removed.
const MIN_CLEANUP: usize = 64;

/// The checkpoints of the tasks of a worker, which outlive handlers that are dropped at their deadline. A task without one has
/// no entry.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// By the address of the envelope, which is no other's while there is a weak reference.
    by_task: BTreeMap<usize, (Weak<Envelope>, Box<str>)>,
    /// The number of entries at which those of ended tasks are removed.
    cleanup_at: usize,
}

impl Checkpoints {
    pub(crate) fn set(&self, task: &Arc<Envelope>, json: Box<str>) {
        let mut entries = lock(&self.0);
        if entries.by_task.len() >= entries.cleanup_at.max(MIN_CLEANUP) {
            entries.by_task.retain(|_, (task, _)| task.strong_count() > 0);
            entries.cleanup_at = 2 * entries.by_task.len();
        }
        entries.by_task.insert(Arc::as_ptr(task).addr(), (Arc::downgrade(task), json));
    }

    /// Takes the checkpoint that the attempt at a task has left.
    pub(crate) fn take(&self, task: &Arc<Envelope>) -> Option<Box<str>> {
        let (_, json) = lock(&self.0).by_task.remove(&Arc::as_ptr(task).addr())?;
        Some(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_of_ended_tasks_are_removed() {
        let checkpoints = Checkpoints::default();
        let kept = crate::testing::finished("kept", "1").envelope;
        checkpoints.set(&kept, "1".into());
        for n in 0..1_000 {
            let passing = crate::testing::finished("passing", "1").envelope;
            checkpoints.set(&passing, "2".into());
            assert!(lock(&checkpoints.0).by_task.len() <= MIN_CLEANUP + 1, "after {n} more");
        }
        assert_eq!(checkpoints.take(&kept).as_deref(), Some("1"));
        assert_eq!(checkpoints.take(&kept), None);
    }
}
