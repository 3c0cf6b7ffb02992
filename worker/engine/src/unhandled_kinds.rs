//! The kinds whose tasks this worker put off because no running worker of the fleet has a handler for them.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use garenne_protocol::heartbeat::UnhandledBeat;
use prometheus::IntGaugeVec;

use crate::panics::lock;

/// The most kinds that are counted by name. Publishers choose the names.
const MOST_KINDS: usize = 1000;
/// The most kinds that a metric names.
const MOST_SERIES: usize = 32;
/// The name under which all further kinds are counted.
const OTHERS: &str = "(other kinds)";
/// How much longer than its delay a task counts, in milliseconds, so that a kind counts without a gap when its tasks
/// come back and are put off again.
const RETURN_TIME: i64 = 1000;

/// The tasks that wait in retry queues for a handler, by lane and kind. Each is counted until it is due.
#[derive(Debug, Default)]
pub(crate) struct UnhandledKinds(Mutex<BTreeMap<(Arc<str>, String), Waiting>>);

/// The waiting tasks of one kind in one lane, by the second in which they are due.
#[derive(Debug, Default)]
struct Waiting(BTreeMap<i64, Due>);

#[derive(Debug)]
struct Due {
    tasks: u64,
    /// Since when the task that waits for longest has been waiting.
    since: i64,
}

impl UnhandledKinds {
    /// Adds a task that has been waiting since `since` and comes back at `due`. Times are milliseconds since 1970.
    /// Returns whether it is the only one of its kind.
    pub(crate) fn add(&self, lane: &Arc<str>, kind: &str, since: i64, due: i64) -> bool {
        let mut kinds = lock(&self.0);
        let key = (Arc::clone(lane), kind.to_owned());
        let is_counted = kinds.len() < MOST_KINDS || kinds.contains_key(&key);
        let key = if is_counted { key } else { (key.0, OTHERS.to_owned()) };
        let Waiting(waiting) = kinds.entry(key).or_default();
        let is_first = waiting.is_empty();
        let second = due.saturating_add(RETURN_TIME) / 1000;
        let due = waiting.entry(second).or_insert(Due { tasks: 0, since });
        due.tasks += 1;
        due.since = due.since.min(since);
        is_first
    }

    /// The kinds with tasks that wait at `now`, those with the most first.
    pub(crate) fn beats(&self, now: i64) -> Vec<UnhandledBeat> {
        let mut kinds = lock(&self.0);
        kinds.retain(|_, Waiting(waiting)| {
            waiting.retain(|second, _| second.saturating_mul(1000) >= now);
            !waiting.is_empty()
        });
        let beat = |((lane, kind), Waiting(waiting)): (&(Arc<str>, String), &Waiting)| UnhandledBeat {
            lane: lane.to_string(),
            kind: kind.clone(),
            tasks: waiting.values().map(|due| due.tasks).sum(),
            since: waiting.values().map(|due| due.since).min().unwrap_or(now),
        };
        let mut beats: Vec<_> = kinds.iter().map(beat).collect();
        drop(kinds);
        beats.sort_by_key(|beat| Reverse(beat.tasks));
        beats
    }

    /// Sets the metric, which has the labels lane and kind.
    pub(crate) fn export(&self, gauges: &IntGaugeVec, now: i64) {
        gauges.reset();
        for UnhandledBeat { lane, kind, tasks, .. } in self.beats(now).into_iter().take(MOST_SERIES) {
            gauges.with_label_values(&[lane, kind]).set(tasks.try_into().unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(kinds: &UnhandledKinds, now: i64) -> Vec<(String, u64, i64)> {
        kinds.beats(now).into_iter().map(|beat| (beat.kind, beat.tasks, beat.since)).collect()
    }

    #[test]
    fn a_task_counts_until_it_is_back_and_its_kind_without_a_gap() {
        let (kinds, lane) = (UnhandledKinds::default(), Arc::from("mail"));
        assert!(kinds.add(&lane, "email.send", 500, 2_000));
        assert!(!kinds.add(&lane, "email.send", 100, 9_000));
        assert!(kinds.add(&lane, "sms.send", 600, 9_000));
        assert_eq!(counted(&kinds, 1_000), [("email.send".into(), 2, 100), ("sms.send".into(), 1, 600)]);
        assert_eq!(counted(&kinds, 3_001)[0], ("email.send".into(), 1, 100));
        assert!(!kinds.add(&lane, "email.send", 100, 19_000), "put off again");
        assert_eq!(counted(&kinds, 10_001), [("email.send".into(), 1, 100)]);
        assert_eq!(counted(&kinds, 20_001), []);
        assert!(kinds.add(&lane, "email.send", 20_001, 21_000), "it waits anew");
    }

    #[test]
    fn names_that_publishers_choose_are_bounded() {
        let (kinds, lane) = (UnhandledKinds::default(), Arc::from("default"));
        let new = (0..10 * MOST_KINDS).filter(|n| kinds.add(&lane, &format!("kind.{n}"), 0, 1_000)).count();
        assert_eq!(new, MOST_KINDS + 1);
        let beats = counted(&kinds, 0);
        assert_eq!(beats[0], (OTHERS.to_owned(), 9 * MOST_KINDS as u64, 0));
        assert_eq!(beats.len(), MOST_KINDS + 1);
    }
}
