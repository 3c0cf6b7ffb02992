//! The tasks of groups that wait or run on this worker. A stop of a group uses them to stop its tasks, except those
//! published after the stop.

use std::sync::{Arc, Mutex, Weak};

use garenne_protocol::task::Envelope;

use crate::panics::lock;

/// Number of entries from which on ended tasks are removed.
const MIN_CLEANUP: usize = 64;

/// Weak references to tasks with a group. There are at most twice as many entries as tasks, or [`MIN_CLEANUP`].
#[derive(Debug, Default)]
pub(crate) struct GroupedTasks(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    tasks: Vec<Weak<Envelope>>,
    /// The number of entries at which ended tasks are removed.
    cleanup_at: usize,
}

impl GroupedTasks {
    /// Adds a task, if it belongs to a group. Call it before the task enters the pool.
    pub(crate) fn track(&self, task: &Arc<Envelope>) {
        if task.group.is_none() {
            return;
        }
        let mut entries = lock(&self.0);
        if entries.tasks.len() >= entries.cleanup_at.max(MIN_CLEANUP) {
            entries.tasks.retain(|task| task.strong_count() > 0);
            entries.cleanup_at = 2 * entries.tasks.len();
        }
        entries.tasks.push(Arc::downgrade(task));
    }

    /// The tasks of a group on this worker.
    pub(crate) fn tasks_of(&self, group: &str) -> Vec<Arc<Envelope>> {
        let entries = lock(&self.0);
        let tasks = entries.tasks.iter().filter_map(Weak::upgrade);
        tasks.filter(|task| task.group.as_deref() == Some(group)).collect()
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
        assert_eq!(tasks.0.lock().unwrap().tasks.len(), 2, "a task without a group has no entry");
    }

    #[test]
    fn entries_are_bounded_by_twice_the_number_of_tasks() {
        let tasks = GroupedTasks::default();
        let kept: Vec<_> = (0..100).map(|n| task(Some(&format!("kept-{n}")))).collect();
        kept.iter().for_each(|task| tasks.track(task));
        for n in 0..10_000 {
            tasks.track(&task(Some(&format!("passing-{n}"))));
            let held = tasks.0.lock().unwrap().tasks.len();
            assert!(held <= 2 * kept.len(), "{held} entries after {n} more");
        }
        assert!(
            kept.iter()
                .enumerate()
                .all(|(n, task)| tasks.tasks_of(&format!("kept-{n}")) == [Arc::clone(task)])
        );
    }
}
