//! The kinds whose tasks wait because no running worker has a handler for them, over the whole fleet.
//!
//! Workers report when the tasks that they put off come back, and which of these tasks any of them has seen since. A task counts
//! until one of them reports that it saw it, so the sum does not change while tasks are put off again, although heartbeats
//! differ in age.

use std::{cmp::Reverse, collections::BTreeMap};

use garenne_protocol::heartbeat::UnhandledBeat;

use super::roster::{MemberView, reported};

/// How many tasks come back at a time in milliseconds, and how many of these were seen since.
type Times = BTreeMap<i64, (u64, u64)>;

/// The sums of these workers' reports, by lane and kind, those with the most tasks first. A kind that is named has at
/// least one task.
pub fn unhandled(workers: &[MemberView]) -> Vec<UnhandledBeat> {
    let mut kinds = BTreeMap::<(&String, &String), (i64, Times)>::new();
    // Tasks that a worker put off wait although it stopped.
    let heard = workers.iter().filter_map(MemberView::heard);
    let earlier = workers.iter().flat_map(|worker| &worker.earlier).map(|(beat, age)| (&**beat, *age));
    for (beat, age) in heard.chain(earlier) {
        for kind in &beat.unhandled {
            let (since, times) = kinds.entry((&kind.lane, &kind.kind)).or_insert((i64::MAX, Times::new()));
            *since = kind.since.min(*since);
            for (due, put_off, seen) in reported(beat, kind, age) {
                let sums = times.entry(due).or_default();
                *sums = (sums.0.saturating_add(put_off), sums.1.saturating_add(seen));
            }
        }
    }
    let sum = |((lane, kind), (since, times)): (_, (_, Times))| {
        let (lane, kind): (&String, &String) = (lane, kind);
        let waiting = times.values().map(|(put_off, seen)| put_off.saturating_sub(*seen));
        let tasks = waiting.fold(0, u64::saturating_add);
        UnhandledBeat { lane: lane.clone(), kind: kind.clone(), tasks, since, waiting: Vec::new() }
    };
    let mut kinds: Vec<_> = kinds.into_iter().map(sum).filter(|kind| kind.tasks > 0).collect();
    kinds.sort_by_key(|kind| Reverse(kind.tasks));
    kinds
}

/// The tasks of a lane whose kinds no running worker has.
pub fn unhandled_in(workers: &[MemberView], lane: &str) -> u64 {
    let named = unhandled(workers).into_iter().filter(|kind| kind.lane == lane).map(|kind| kind.tasks);
    // A heartbeat names only some of many kinds.
    let recent = workers.iter().filter_map(MemberView::heard).filter(|(beat, age)| *age < 3 * beat.every_ms);
    let others = recent.map(|(beat, _)| {
        let named = beat.unhandled.iter().filter(|kind| kind.lane == lane).map(|kind| kind.tasks).sum();
        beat.lanes.get(lane).map_or(0, |lane| lane.unhandled.saturating_sub(named))
    });
    named.chain(others).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use garenne_protocol::heartbeat::Program;
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::Roster;

    const NOW: i64 = 9_000;

    fn record(roster: &mut Roster, id: &str, stance: &str, unhandled: Value, lanes: Value, at: i64) {
        let beat = json!({
            "program": "worker", "id": id, "incarnation": id, "started_at": 0, "at": at,
            "every_ms": 1000, "stance": stance, "unhandled": unhandled, "lanes": lanes,
        });
        roster.record(serde_json::from_value(beat).unwrap(), at);
    }

    fn figures(roster: &Roster, now: i64) -> Vec<(String, u64, i64)> {
        let found = unhandled(&roster.members(Program::Worker, now)).into_iter();
        found.map(|it| (it.lane, it.tasks, it.since)).collect()
    }

    #[test]
    fn the_reports_of_all_workers_are_summed_by_lane_and_kind() {
        let mut roster = Roster::new(0);
        for (id, stance, tasks, since) in
            [("a", "open", 3, 500), ("b", "open", 4, 200), ("c", "stopped", 9, 100)]
        {
            let kinds = json!([
                {"lane": "default", "kind": "email.send", "since": since, "waiting": [[20_000, tasks, 0]]},
                {"lane": id, "kind": "email.send", "since": since, "waiting": [[20_000, 1, 0]]},
            ]);
            record(&mut roster, id, stance, kinds, json!({}), NOW);
        }
        let expected = [("default", 16, 100), ("a", 1, 500), ("b", 1, 200), ("c", 1, 100)];
        assert_eq!(
            figures(&roster, NOW),
            expected.map(|(lane, tasks, since)| (lane.to_owned(), tasks, since))
        );
    }

    /// Worker `a` put twenty tasks off, then another worker put them off again, which may be heard before or after `a`.
    #[test]
    fn a_task_counts_once_until_a_worker_saw_it_again() {
        let mut roster = Roster::new(0);
        let kind = |waiting: Value| json!([{"lane": "default", "kind": "email.send", "since": 1, "waiting": waiting}]);
        let lanes = |tasks: u64| json!({"default": {"unhandled": tasks}});
        record(&mut roster, "a", "open", kind(json!([[9_500, 20, 0], [14_000, 3, 0]])), lanes(7), NOW);
        let figure = |roster: &Roster, now| figures(roster, now).first().map_or(0, |figure| figure.1);
        let of_lane = |roster: &Roster, now| unhandled_in(&roster.members(Program::Worker, now), "default");
        assert_eq!((figure(&roster, NOW + 900), of_lane(&roster, NOW + 900)), (23, 30), "7 are not named");
        let again = kind(json!([[9_500, 0, 20], [15_000, 20, 0]]));
        record(&mut roster, "b", "open", again, lanes(0), NOW + 900);
        assert_eq!((figure(&roster, NOW + 900), of_lane(&roster, NOW + 900)), (23, 30));
        record(&mut roster, "c", "open", kind(json!([[15_000, 0, 20]])), lanes(0), NOW + 6_000);
        assert_eq!(figure(&roster, NOW + 6_000), 3, "c has the handler");
        assert_eq!(figure(&roster, NOW + 60_000), 0, "nobody reported them");
    }

    /// Otherwise the tasks would count again only when they are due, and `/scale` would let the service sleep until then.
    #[test]
    fn what_a_worker_put_off_counts_after_it_restarted_under_its_id_until_a_worker_saw_it() {
        let mut roster = Roster::new(0);
        let kind = |waiting: Value| json!([{"lane": "default", "kind": "k", "since": 1, "waiting": waiting}]);
        let record = |roster: &mut Roster, run: i64, stance: &str, kinds: Value, at: i64| {
            let beat = json!({
                "program": "worker", "id": "a", "incarnation": run.to_string(), "started_at": run, "at": at,
                "every_ms": 1000, "stance": stance, "unhandled": kinds,
            });
            roster.record(serde_json::from_value(beat).unwrap(), at);
        };
        record(&mut roster, 1, "stopped", kind(json!([[NOW + 60_000, 5, 0]])), NOW);
        record(&mut roster, 2, "open", json!([]), NOW + 1_000);
        record(&mut roster, 2, "stopped", kind(json!([[NOW + 40_000, 2, 0]])), NOW + 2_000);
        record(&mut roster, 3, "open", json!([]), NOW + 3_000);
        let figure = |roster: &Roster, now| unhandled_in(&roster.members(Program::Worker, now), "default");
        assert_eq!(figure(&roster, NOW + 3_000), 7);
        roster.forget(NOW + 50_000);
        record(&mut roster, 3, "open", kind(json!([[NOW + 40_000, 0, 2]])), NOW + 41_000);
        assert_eq!(figure(&roster, NOW + 41_000), 5);
        record(&mut roster, 3, "open", json!([]), NOW + 71_000);
        assert_eq!(figure(&roster, NOW + 71_000), 0, "nobody reported them");
    }

    #[test]
    fn a_worker_that_left_is_remembered_until_its_tasks_are_back() {
        let mut roster = Roster::new(0);
        let kinds = json!([{"lane": "default", "kind": "k", "since": 1, "waiting": [[NOW + 300_000, 5, 0]]}]);
        record(&mut roster, "a", "stopped", kinds, json!({}), NOW);
        roster.forget(NOW + 300_000);
        assert_eq!(figures(&roster, NOW + 300_000), [("default".to_owned(), 5, 1)]);
        roster.forget(NOW + 310_001);
        assert_eq!(roster.members(Program::Worker, NOW + 310_001).len(), 0);
    }
}
