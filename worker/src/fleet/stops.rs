//! Which tasks an operator stopped, wherever they are.

use std::{
    collections::{HashMap, HashSet},
    sync::{PoisonError, RwLock},
};

use garenne_common::task::{Envelope, StopOrder};

/// Every stop order that is still kept. Asked twice of each task, by any thread: when it is delivered,
/// and when it starts, because an order may come while it waits.
#[derive(Debug, Default)]
pub(crate) struct Stops(RwLock<Orders>);

#[derive(Debug, Default)]
struct Orders {
    tasks: HashSet<String>,
    /// Group to the time of its latest order, milliseconds since 1970.
    groups: HashMap<String, i64>,
}

impl Stops {
    /// Takes an order; answers whether it says anything new. From then on no task that it covers
    /// starts here.
    pub(crate) fn apply(&self, order: &StopOrder) -> bool {
        let mut orders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match order {
            StopOrder::Task { task, .. } => orders.tasks.insert(task.clone()),
            StopOrder::Group { group, at } => {
                let latest = orders.groups.entry(group.clone()).or_insert(i64::MIN);
                let newer = *at > *latest;
                *latest = (*latest).max(*at);
                newer
            }
        }
    }

    /// Whether an order covers the task. A group's order covers what was published before it; a task
    /// that does not say when it was published counts as before.
    pub(crate) fn cover(&self, task: &Envelope) -> bool {
        let Orders { tasks, groups } = &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() && groups.is_empty() {
            return false;
        }
        if tasks.contains(task.id.as_str()) {
            return true;
        }
        let order = task.group.as_ref().and_then(|group| groups.get(group));
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
        let stops = Stops::default();
        let orders = [
            StopOrder::Task { task: "a".into(), at: 0 },
            StopOrder::Group { group: "g".into(), at: 100_000 },
        ];
        assert!(orders.iter().all(|order| stops.apply(order)));
        assert!(!orders.iter().any(|order| stops.apply(order)), "read again, it says nothing new");
        assert!(stops.cover(&task("a", None, 500)));
        assert!(!stops.cover(&task("b", None, 500)));
        assert!(stops.cover(&task("b", Some("g"), 100)));
        assert!(!stops.cover(&task("b", Some("g"), 101)));
    }
}
