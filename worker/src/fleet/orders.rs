//! What an operator ordered of tasks and groups, wherever they are.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use garenne_common::task::{Envelope, StandingOrder, epoch_ms};

/// The longest a task of a paused group is put off at a time.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// Every order that is still kept. Asked twice of each task, by any thread: when it is delivered,
/// and when it starts, because an order may come while it waits.
#[derive(Debug, Default)]
pub(crate) struct Orders(RwLock<Books>);

/// Times are milliseconds since 1970.
#[derive(Debug, Default)]
struct Books {
    /// Task to the time of its latest stop.
    tasks: HashMap<String, i64>,
    /// Group to the time of its latest stop.
    groups: HashMap<String, i64>,
    /// Group to the time of its latest pause or resumption, and whether it was a pause.
    pauses: HashMap<String, (i64, bool)>,
}

/// What the orders say of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It must not start.
    Stopped,
    /// Its group is paused. It is put off for so long, as long as the pause has lasted: so a resumed
    /// group works again after at most twice its pause, and a long pause costs few copies.
    PutOff(Duration),
}

impl Orders {
    /// Takes an order; answers whether it says anything new. From then on no task that it covers
    /// starts here.
    pub(crate) fn apply(&self, order: &StandingOrder) -> bool {
        let mut books = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let later = |latest: &mut i64, at: i64| {
            let newer = at > *latest;
            *latest = (*latest).max(at);
            newer
        };
        match order {
            StandingOrder::Task { task, at } => {
                later(books.tasks.entry(task.clone()).or_insert(i64::MIN), *at)
            }
            StandingOrder::Group { group, at } => {
                later(books.groups.entry(group.clone()).or_insert(i64::MIN), *at)
            }
            StandingOrder::Pause { pause: group, at } | StandingOrder::Resume { resume: group, at } => {
                let (latest, paused) = books.pauses.entry(group.clone()).or_insert((i64::MIN, false));
                let newer = later(latest, *at);
                if newer {
                    *paused = matches!(order, StandingOrder::Pause { .. });
                }
                newer
            }
        }
    }

    /// What the orders say of a task. A group's stop covers what was published before it; a task
    /// that does not say when it was published counts as before. No stop covers what an operator put
    /// back to work after it.
    pub(crate) fn word(&self, task: &Envelope, now: SystemTime) -> Option<Word> {
        let Books { tasks, groups, pauses } = &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() && groups.is_empty() && pauses.is_empty() {
            return None;
        }
        let covers = |order: Option<&i64>, since: Option<i64>| {
            order.is_some_and(|at| since.is_none_or(|since| since <= *at))
        };
        if covers(tasks.get(task.id.as_str()), task.replayed_at) {
            return Some(Word::Stopped);
        }
        let group = task.group.as_ref()?;
        let published = task.timestamp.map(|s| i64::try_from(s).unwrap_or(0) * 1000);
        if covers(groups.get(group), task.replayed_at.or(published)) {
            return Some(Word::Stopped);
        }
        let (since, _) = pauses.get(group).filter(|(_, paused)| *paused)?;
        let lasted = Duration::from_millis(u64::try_from(epoch_ms(now) - since).unwrap_or(0));
        Some(Word::PutOff(lasted.min(LONGEST_REST)))
    }

    /// The paused groups, in order.
    pub(crate) fn paused(&self) -> Vec<String> {
        let books = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let paused = books.pauses.iter().filter(|(_, (_, paused))| *paused);
        let mut groups: Vec<_> = paused.map(|(group, _)| group.clone()).collect();
        groups.sort_unstable();
        groups
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use garenne_common::task::{ContentType, Kind, NewTask, TaskId};

    use super::*;

    fn task(id: &str, group: Option<&str>, published_s: u64) -> Envelope {
        let mut task = NewTask::new(Kind::parse("k").unwrap(), ContentType::Json, Vec::new());
        task.id = TaskId::parse(id).unwrap();
        task.group = group.map(str::to_owned);
        let now = UNIX_EPOCH + Duration::from_secs(published_s);
        Envelope::read("k", &task.properties(now), None, |_| true, now).unwrap()
    }

    fn stopped(orders: &Orders, task: &Envelope) -> bool {
        orders.word(task, UNIX_EPOCH + Duration::from_secs(1000)) == Some(Word::Stopped)
    }

    #[test]
    fn a_task_is_stopped_by_id_and_a_group_up_to_the_order() {
        let stops = Orders::default();
        let orders = [
            StandingOrder::Task { task: "a".into(), at: 0 },
            StandingOrder::Group { group: "g".into(), at: 100_000 },
        ];
        assert!(orders.iter().all(|order| stops.apply(order)));
        assert!(!orders.iter().any(|order| stops.apply(order)), "read again, it says nothing new");
        assert!(stopped(&stops, &task("a", None, 500)));
        assert!(!stopped(&stops, &task("b", None, 500)));
        assert!(stopped(&stops, &task("b", Some("g"), 100)));
        assert!(!stopped(&stops, &task("b", Some("g"), 101)));
    }

    #[test]
    fn who_puts_a_task_back_to_work_overrules_the_orders_before() {
        let stops = Orders::default();
        let order = |at| StandingOrder::Task { task: "a".into(), at };
        let group = |at| StandingOrder::Group { group: "g".into(), at };
        let replayed = |at| Envelope {
            replayed_at: Some(at),
            ..task("a", Some("g"), u64::try_from(at).unwrap() / 1000)
        };
        assert!(stops.apply(&order(5000)) && stops.apply(&group(7000)));
        assert!(stopped(&stops, &Envelope { group: None, ..replayed(5000) }), "the order was not before");
        assert!(!stopped(&stops, &Envelope { group: None, ..replayed(5001) }));
        assert!(stopped(&stops, &replayed(5001)), "its group was stopped since");
        assert!(
            !stopped(&stops, &Envelope { timestamp: Some(1), ..replayed(7001) }),
            "whenever it was published"
        );
        assert!(stops.apply(&order(9000)), "the same task, stopped once more");
        assert!(stopped(&stops, &replayed(8000)));
        assert!(!stops.apply(&order(8500)), "an older order says nothing new");
    }

    #[test]
    fn a_paused_group_is_put_off_for_as_long_as_its_pause_lasts() {
        let orders = Orders::default();
        let pause = |at| StandingOrder::Pause { pause: "g".into(), at };
        let resume = |at| StandingOrder::Resume { resume: "g".into(), at };
        let word =
            |group, now_ms| orders.word(&task("a", group, 1), UNIX_EPOCH + Duration::from_millis(now_ms));
        assert!(orders.apply(&pause(5000)));
        assert_eq!(orders.paused(), ["g"]);
        assert_eq!(word(Some("g"), 5000), Some(Word::PutOff(Duration::ZERO)));
        assert_eq!(word(Some("g"), 12_500), Some(Word::PutOff(Duration::from_millis(7500))));
        assert_eq!(word(Some("g"), 9_000_000), Some(Word::PutOff(LONGEST_REST)));
        assert_eq!(word(Some("g"), 4000), Some(Word::PutOff(Duration::ZERO)), "clocks may differ");
        assert_eq!((word(Some("other"), 6000), word(None, 6000)), (None, None));
        assert!(orders.apply(&resume(8000)));
        assert!(!orders.apply(&pause(5000)), "read again, an old pause says nothing new");
        assert_eq!((word(Some("g"), 9000), orders.paused().len()), (None, 0));
        assert!(
            orders.apply(&StandingOrder::Group { group: "g".into(), at: 9000 }) && orders.apply(&pause(9000))
        );
        assert_eq!(word(Some("g"), 9000), Some(Word::Stopped), "a stop outweighs a pause");
    }
}
