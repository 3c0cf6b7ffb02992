//! Which tasks an operator stopped, wherever they are.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use garenne_common::task::{Envelope, StopOrder};

/// Every stop order that is still kept. Asked twice of each task, by any thread: when it is delivered,
/// and when it starts, because an order may come while it waits.
#[derive(Debug, Default)]
pub(crate) struct Stops(RwLock<Orders>);

#[derive(Debug, Default)]
struct Orders {
    /// Task to the time of its latest order, milliseconds since 1970.
    tasks: HashMap<String, i64>,
    /// Group to the time of its latest order, milliseconds since 1970.
    groups: HashMap<String, i64>,
}

impl Stops {
    /// Takes an order; answers whether it says anything new. From then on no task that it covers
    /// starts here.
    pub(crate) fn apply(&self, order: &StopOrder) -> bool {
        let mut orders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (orders, name, at) = match order {
            StopOrder::Task { task, at } => (&mut orders.tasks, task, *at),
            StopOrder::Group { group, at } => (&mut orders.groups, group, *at),
        };
        let latest = orders.entry(name.clone()).or_insert(i64::MIN);
        let newer = at > *latest;
        *latest = (*latest).max(at);
        newer
    }

    /// Whether an order covers the task. A group's order covers what was published before it; a task
    /// that does not say when it was published counts as before. No order covers what an operator put
    /// back to work after it.
    pub(crate) fn cover(&self, task: &Envelope) -> bool {
        let Orders { tasks, groups } = &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() && groups.is_empty() {
            return false;
        }
        let latest = |order: Option<&i64>, since: Option<i64>| {
            order.is_some_and(|at| since.is_none_or(|since| since <= *at))
        };
        if latest(tasks.get(task.id.as_str()), task.replayed_at) {
            return true;
        }
        let published = task.timestamp.map(|s| i64::try_from(s).unwrap_or(0) * 1000);
        let order = task.group.as_ref().and_then(|group| groups.get(group));
        latest(order, task.replayed_at.or(published))
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

    #[test]
    fn who_puts_a_task_back_to_work_overrules_the_orders_before() {
        let stops = Stops::default();
        let order = |at| StopOrder::Task { task: "a".into(), at };
        let group = |at| StopOrder::Group { group: "g".into(), at };
        let replayed = |at| Envelope {
            replayed_at: Some(at),
            ..task("a", Some("g"), u64::try_from(at).unwrap() / 1000)
        };
        assert!(stops.apply(&order(5000)) && stops.apply(&group(7000)));
        assert!(stops.cover(&Envelope { group: None, ..replayed(5000) }), "the order was not before");
        assert!(!stops.cover(&Envelope { group: None, ..replayed(5001) }));
        assert!(stops.cover(&replayed(5001)), "its group was stopped since");
        assert!(
            !stops.cover(&Envelope { timestamp: Some(1), ..replayed(7001) }),
            "whenever it was published"
        );
        assert!(stops.apply(&order(9000)), "the same task, stopped once more");
        assert!(stops.cover(&replayed(8000)));
        assert!(!stops.apply(&order(8500)), "an older order says nothing new");
    }
}
