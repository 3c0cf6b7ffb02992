//! Which tasks an operator stopped, wherever they are.

use std::collections::{HashMap, HashSet};

use garenne_common::task::{Envelope, StopOrder};

/// Every stop order that is still kept.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    tasks: HashSet<String>,
    /// Group to the time of its latest order, milliseconds since 1970.
    groups: HashMap<String, i64>,
}

impl Stops {
    /// Takes an order.
    pub(crate) fn apply(&mut self, order: &StopOrder) {
        match order {
            StopOrder::Task { task, .. } => {
                self.tasks.insert(task.clone());
            }
            StopOrder::Group { group, at } => {
                let latest = self.groups.entry(group.clone()).or_insert(*at);
                *latest = (*latest).max(*at);
            }
        }
    }

    /// Whether an order covers the task. A group's order covers what was published before it; a task
    /// that does not say when it was published counts as before.
    pub(crate) fn cover(&self, task: &Envelope) -> bool {
        if self.tasks.is_empty() && self.groups.is_empty() {
            return false;
        }
        if self.tasks.contains(task.id.as_str()) {
            return true;
        }
        let order = task.group.as_ref().and_then(|group| self.groups.get(group));
        order.is_some_and(|at| task.timestamp.is_none_or(|s| i64::try_from(s).unwrap_or(0) * 1000 <= *at))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use garenne_common::task::{ContentType, Kind, NewTask, TaskId};

    use super::*;

    fn task(id: &str, group: Option<&str>, published_s: u64) -> Envelope {
        let mut task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
        task.id = TaskId::parse(id).unwrap();
        task.group = group.map(str::to_owned);
        let now = UNIX_EPOCH + Duration::from_secs(published_s);
        Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap()
    }

    #[test]
    fn a_task_is_stopped_by_id_and_a_group_up_to_the_order() {
        let mut stops = Stops::default();
        stops.apply(&StopOrder::Task { task: "a".into(), at: 0 });
        stops.apply(&StopOrder::Group { group: "g".into(), at: 100_000 });
        assert!(stops.cover(&task("a", None, 500)));
        assert!(!stops.cover(&task("b", None, 500)));
        assert!(stops.cover(&task("b", Some("g"), 100)));
        assert!(!stops.cover(&task("b", Some("g"), 101)));
    }
}
