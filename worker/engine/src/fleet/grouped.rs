//! The tasks of groups that wait or run here, so that a group's stop finds those that it covers and
//! leaves alone those that were published after it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use garenne_protocol::task::Envelope;

/// Entries below which nothing is searched for tasks that ended.
const FEW: usize = 64;

/// Held weakly: a task that ended leaves nothing but its entry, and entries are at most twice the tasks
/// that are here, or [`FEW`].
#[derive(Debug, Default)]
pub(crate) struct GroupedTasks(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    groups: HashMap<String, Vec<Weak<Envelope>>>,
    count: usize,
    /// The count at which those that ended are removed.
    limit: usize,
}

impl GroupedTasks {
    /// Notes a task before it enters the pool, if it belongs to a group.
    pub(crate) fn note(&self, task: &Arc<Envelope>) {
        let Some(group) = &task.group else { return };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.count >= entries.limit.max(FEW) {
            entries.remove_ended();
        }
        entries.count += 1;
        match entries.groups.get_mut(group) {
            Some(tasks) => tasks.push(Arc::downgrade(task)),
            None => drop(entries.groups.insert(group.clone(), vec![Arc::downgrade(task)])),
        }
    }

    /// The tasks of a group that are here.
    pub(crate) fn of(&self, group: &str) -> Vec<Arc<Envelope>> {
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
        self.limit = 2 * self.count;
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
    fn a_groups_tasks_are_found_while_they_are_here() {
        let tasks = GroupedTasks::default();
        let (one, other, single) = (task(Some("g")), task(Some("h")), task(None));
        [&one, &other, &single].into_iter().for_each(|task| tasks.note(task));
        assert_eq!(tasks.of("g"), [Arc::clone(&one)]);
        assert_eq!(tasks.of("h"), [other]);
        assert!(tasks.of("none").is_empty());
        drop(one);
        assert!(tasks.of("g").is_empty());
        assert_eq!(tasks.0.lock().unwrap().count, 2, "one without a group needs no entry");
    }

    #[test]
    fn entries_are_bounded_by_the_tasks_that_are_here() {
        let tasks = GroupedTasks::default();
        let kept: Vec<_> = (0..100).map(|n| task(Some(&format!("kept-{n}")))).collect();
        kept.iter().for_each(|task| tasks.note(task));
        for n in 0..10_000 {
            tasks.note(&task(Some(&format!("passing-{n}"))));
            let entries = tasks.0.lock().unwrap();
            let held: usize = entries.groups.values().map(Vec::len).sum();
            assert_eq!(entries.count, held);
            assert!(held <= 2 * kept.len(), "{held} entries after {n} more");
        }
        assert!(
            kept.iter().enumerate().all(|(n, task)| tasks.of(&format!("kept-{n}")) == [Arc::clone(task)])
        );
    }
}
