//! The tasks of groups that wait or run on this worker. A stop of a group uses them to stop its tasks, except those
//! published after the stop.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use garenne_protocol::task::Envelope;

/// Number of entries from which on ended tasks are removed.
const MIN_CLEANUP: usize = 64;

/// Weak references to tasks, by group. There are at most twice as many entries as tasks, or [`MIN_CLEANUP`].
#[derive(Debug, Default)]
pub(crate) struct GroupedTasks(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    groups: HashMap<String, Vec<Weak<Envelope>>>,
    count: usize,
    /// The count at which ended tasks are removed.
    cleanup_at: usize,
}

impl GroupedTasks {
    /// Adds a task, if it belongs to a group. Call it before the task enters the pool.
    pub(crate) fn track(&self, task: &Arc<Envelope>) {
        let Some(group) = &task.group else { return };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.count >= entries.cleanup_at.max(MIN_CLEANUP) {
            entries.remove_ended();
        }
        entries.count += 1;
        match entries.groups.get_mut(group) {
            Some(tasks) => tasks.push(Arc::downgrade(task)),
            None => drop(entries.groups.insert(group.clone(), vec![Arc::downgrade(task)])),
        }
    }

    /// The tasks of a group on this worker.
    pub(crate) fn tasks_of(&self, group: &str) -> Vec<Arc<Envelope>> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.groups.get(group).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }
}

impl Entries {
    fn remove_ended(&mut self) {
        self.groups.retain(|_, tasks| {
            tasks.retain(|task| task.strong_count() > 0);
            !tasks.is_empty()
        });
        self.count = self.groups.values().map(Vec::len).sum();
        self.cleanup_at = 2 * self.count;
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use garenne_protocol::task::{ContentType, Kind, NewTask};

    use super::*;

    fn task(group: Option<&str>) -> Arc<Envelope> {
        let mut task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
        task.group = group.map(str::to_owned);
        let now = SystemTime::now();
        Arc::new(Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap())
    }

    #[test]
    fn a_task_is_found_by_its_group_until_it_ends() {
        let tasks = GroupedTasks::default();
        let (one, other, single) = (task(Some("g")), task(Some("h")), task(None));
        [&one, &other, &single].into_iter().for_each(|task| tasks.track(task));
        assert_eq!(tasks.tasks_of("g"), [Arc::clone(&one)]);
        assert_eq!(tasks.tasks_of("h"), [other]);
        assert!(tasks.tasks_of("none").is_empty());
        drop(one);
        assert!(tasks.tasks_of("g").is_empty());
        assert_eq!(tasks.0.lock().unwrap().count, 2, "a task without a group has no entry");
    }

    #[test]
    fn entries_are_bounded_by_twice_the_number_of_tasks() {
        let tasks = GroupedTasks::default();
        let kept: Vec<_> = (0..100).map(|n| task(Some(&format!("kept-{n}")))).collect();
        kept.iter().for_each(|task| tasks.track(task));
        for n in 0..10_000 {
            tasks.track(&task(Some(&format!("passing-{n}"))));
            let entries = tasks.0.lock().unwrap();
            let held: usize = entries.groups.values().map(Vec::len).sum();
            assert_eq!(entries.count, held);
            assert!(held <= 2 * kept.len(), "{held} entries after {n} more");
        }
        assert!(
            kept.iter()
                .enumerate()
                .all(|(n, task)| tasks.tasks_of(&format!("kept-{n}")) == [Arc::clone(task)])
        );
    }
}
