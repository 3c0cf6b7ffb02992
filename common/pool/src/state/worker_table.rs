//! The workers of a pool, by key.

use std::sync::Arc;

use super::worker_slot::{WorkerKey, WorkerSlot};
use crate::{completion::Completion, task::Task};

/// The workers that have not exited and were not abandoned.
pub(crate) struct WorkerTable<T: Task, C: Completion<T::Output>> {
    /// By index. The place of a removed worker is reused.
    slots: Vec<Option<Arc<WorkerSlot<T, C>>>>,
    next_id: u64,
    len: usize,
}

impl<T: Task, C: Completion<T::Output>> WorkerTable<T, C> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), next_id: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn add(&mut self) -> Arc<WorkerSlot<T, C>> {
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let slot = Arc::new(WorkerSlot::new(WorkerKey { id: self.next_id, index }));
        self.next_id += 1;
        self.len += 1;
        if index == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[index] = Some(Arc::clone(&slot));
        slot
    }

    pub(crate) fn get(&self, key: WorkerKey) -> Option<&Arc<WorkerSlot<T, C>>> {
        self.slots.get(key.index)?.as_ref().filter(|slot| slot.key == key)
    }

    /// Returns false if the worker was removed before.
    pub(crate) fn remove(&mut self, key: WorkerKey) -> bool {
        let found = self.get(key).is_some();
        if found {
            self.slots[key.index] = None;
            self.len -= 1;
        }
        found
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<WorkerSlot<T, C>>> {
        self.slots.iter().flatten()
    }
}
