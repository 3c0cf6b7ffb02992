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
/// How long a kind is named after its last task was due, in milliseconds, so that it is named without a gap when its tasks
/// are put off again.
const RETURN_TIME: i64 = 1000;
/// How exactly it is known when tasks are due, in milliseconds.
const STEP: i64 = 10;

/// The tasks that wait in retry queues for a handler, by lane and kind. Each counts until it is due: then any worker may put
/// it off again and count it.
#[derive(Debug, Default)]
pub(crate) struct UnhandledKinds(Mutex<BTreeMap<(Arc<str>, String), Waiting>>);

/// The waiting tasks of one kind in one lane, by the time at which they are due, rounded down.
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
        let due = waiting.entry(due / STEP * STEP).or_insert(Due { tasks: 0, since });
        due.tasks += 1;
        due.since = due.since.min(since);
        is_first
    }

    /// The kinds with tasks that wait at `now`, or were due just before, those with the most first.
    pub(crate) fn beats(&self, now: i64) -> Vec<UnhandledBeat> {
        let mut kinds = lock(&self.0);
        kinds.retain(|_, Waiting(waiting)| {
            waiting.retain(|due, _| due.saturating_add(RETURN_TIME) >= now);
            !waiting.is_empty()
        });
        let beat = |((lane, kind), Waiting(waiting)): (&(Arc<str>, String), &Waiting)| {
            let since = waiting.values().map(|due| due.since).min().unwrap_or(now);
            let (lane, kind) = (lane.to_string(), kind.clone());
            let mut beat = UnhandledBeat { lane, kind, since, ..UnhandledBeat::default() };
            for (due, Due { tasks, .. }) in waiting.range(now + 1..) {
                beat.add(due.abs_diff(now), *tasks);
            }
            beat
        };
        let mut beats: Vec<_> = kinds.iter().map(beat).collect();
        drop(kinds);
        beats.sort_by_key(|beat| Reverse(beat.tasks));
        beats
    }

    /// Sets the metric, which has the labels lane and kind. It is never 0 for a moment, because alerts would end.
    pub(crate) fn export(&self, gauges: &IntGaugeVec, now: i64) {
        gauges.reset();
        for UnhandledBeat { lane, kind, tasks, .. } in self.beats(now).into_iter().take(MOST_SERIES) {
            gauges.with_label_values(&[lane, kind]).set(tasks.max(1).try_into().unwrap_or(i64::MAX));
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
    fn a_task_counts_until_it_is_due_and_its_kind_is_named_without_a_gap() {
        let (kinds, lane) = (UnhandledKinds::default(), Arc::from("mail"));
        assert!(kinds.add(&lane, "email.send", 500, 2_000));
        assert!(!kinds.add(&lane, "email.send", 100, 9_000));
        assert!(kinds.add(&lane, "sms.send", 600, 9_000));
        assert_eq!(counted(&kinds, 1_999), [("email.send".into(), 2, 100), ("sms.send".into(), 1, 600)]);
        assert_eq!(counted(&kinds, 2_000)[0], ("email.send".into(), 1, 100));
        assert_eq!(counted(&kinds, 9_000), [("email.send".into(), 0, 100), ("sms.send".into(), 0, 600)]);
        assert!(!kinds.add(&lane, "email.send", 100, 19_000), "put off again");
        assert_eq!(counted(&kinds, 10_001), [("email.send".into(), 1, 100)]);
        assert_eq!(counted(&kinds, 20_001), []);
        assert!(kinds.add(&lane, "email.send", 20_001, 21_000), "it waits anew");
    }

    /// Twenty tasks that come back in step are put off by any of three workers, whose heartbeats are up to two seconds old.
    #[test]
    fn a_task_that_several_workers_put_off_counts_once() {
        const TASKS: u64 = 20;
        let (workers, lane) = ([(); 3].map(|()| UnhandledKinds::default()), Arc::from("mail"));
        let mut beats = [const { Vec::new() }; 3];
        let (mut heard, mut due, mut turn) = ([0; 3], 0, 0);
        let mut figures = std::collections::BTreeMap::<u64, u64>::new();
        for now in 0..120_000 {
            // They are back 3 ms after they were due.
            if now == due + 3 || now == 0 {
                due = now + [1_000, 5_000, 15_000][turn % 3];
                for task in 0..TASKS {
                    workers[(task as usize * 7 + turn) % 3].add(&lane, "email.send", 0, due);
                }
                turn += 1;
            }
            for worker in 0..3 {
                if now % 2_000 == 600 * worker as i64 {
                    (beats[worker], heard[worker]) = (workers[worker].beats(now), now);
                }
            }
            let figure: u64 = (0..3)
                .flat_map(|it| beats[it].iter().map(move |beat| (it, beat)))
                .map(|(it, beat)| beat.waiting(now.abs_diff(heard[it])))
                .sum();
            *figures.entry(figure).or_default() += 1;
            let at_once: u64 = workers.iter().flat_map(|it| it.beats(now)).map(|beat| beat.tasks).sum();
            assert!(at_once == TASKS || now > due - STEP, "{at_once} at {now}");
        }
        assert!(figures.keys().all(|figure| *figure <= TASKS), "{figures:?}");
        assert!(figures[&TASKS] > 70_000, "{figures:?}");
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
