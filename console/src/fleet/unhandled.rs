//! The kinds whose tasks wait because no running worker has a handler for them, over the whole fleet.
//!
//! A task counts at the worker that put it off, until it is due. Then it is in its lane's queue for a moment, and another worker
//! may put it off. Heartbeats say when tasks are due, so that none counts twice although they differ in age.

use std::{cmp::Reverse, collections::BTreeMap};

use garenne_protocol::heartbeat::{Heartbeat, UnhandledBeat};

use super::roster::{MemberView, State};

/// The sums of these workers' reports, by lane and kind, those with the most tasks first. A kind that is named has at
/// least one task.
pub fn unhandled(workers: &[MemberView]) -> Vec<UnhandledBeat> {
    let mut kinds = BTreeMap::<_, UnhandledBeat>::new();
    for (beat, age) in heard(workers) {
        for reported in &beat.unhandled {
            let UnhandledBeat { lane, kind, since, .. } = reported;
            let sum = kinds.entry((lane, kind)).or_insert(UnhandledBeat {
                lane: lane.clone(),
                kind: kind.clone(),
                since: *since,
                ..UnhandledBeat::default()
            });
            sum.tasks = sum.tasks.saturating_add(reported.waiting(age));
            sum.since = sum.since.min(*since);
        }
    }
    let mut kinds: Vec<_> = kinds.into_values().collect();
    kinds.iter_mut().for_each(|kind| kind.tasks = kind.tasks.max(1));
    kinds.sort_by_key(|kind| Reverse(kind.tasks));
    kinds
}

/// The tasks of a lane whose kinds no running worker has. At least one if a kind is named.
pub fn unhandled_in(workers: &[MemberView], lane: &str) -> u64 {
    let (mut tasks, mut is_named) = (0_u64, false);
    for (beat, age) in heard(workers) {
        let named = beat.unhandled.iter().filter(|kind| kind.lane == lane);
        let due: u64 = named.clone().map(|kind| kind.tasks.saturating_sub(kind.waiting(age))).sum();
        // A heartbeat names only some of many kinds.
        let all = beat.lanes.get(lane).map_or(0, |lane| lane.unhandled);
        tasks = tasks.saturating_add(all.saturating_sub(due));
        is_named |= named.count() > 0;
    }
    tasks.max(is_named.into())
}

/// The heartbeats of the workers that run, and how old they are in milliseconds. Those of a silent worker count until all
/// of its tasks are due.
fn heard(workers: &[MemberView]) -> impl Iterator<Item = (&Heartbeat, u64)> {
    let running = workers.iter().filter(|worker| worker.state.runs());
    let heard = running.filter_map(|worker| {
        Some((worker.state, worker.process.heartbeat()?, worker.heard_ms_ago.unwrap_or(0)))
    });
    let counts = |state, beat: &Heartbeat, age| {
        state != State::Silent || beat.unhandled.iter().any(|kind| kind.waiting(age) > 0)
    };
    heard.filter(move |(state, beat, age)| counts(*state, beat, *age)).map(|(_, beat, age)| (beat, age))
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
            [("a", "open", 3, 500), ("b", "open", 4, 200), ("c", "stopped", 9, 1)]
        {
            let kinds = json!([{"lane": "default", "kind": "email.send", "tasks": tasks, "since": since},
                               {"lane": id, "kind": "email.send", "tasks": 1, "since": since}]);
            record(&mut roster, id, stance, kinds, json!({}), NOW);
        }
        let expected = [("default", 7, 200), ("a", 1, 500), ("b", 1, 200)];
        assert_eq!(
            figures(&roster, NOW),
            expected.map(|(lane, tasks, since)| (lane.to_owned(), tasks, since))
        );
    }

    /// Worker `a` put twenty tasks off before its last heartbeat, and `b` after they came back.
    #[test]
    fn a_task_that_another_worker_has_put_off_since_counts_once() {
        let mut roster = Roster::new(0);
        let kind = |tasks: u64, due: Value| json!([{"lane": "default", "kind": "email.send", "tasks": tasks, "since": 1, "due": due}]);
        let lanes = |tasks: u64| json!({"default": {"unhandled": tasks}});
        record(&mut roster, "a", "open", kind(23, json!([[700, 20], [5000, 3]])), lanes(30), NOW);
        record(&mut roster, "b", "open", kind(20, json!([[5000, 20]])), lanes(20), NOW + 900);
        let figure = |now| figures(&roster, now)[0].1;
        let of_lane = |now| unhandled_in(&roster.members(Program::Worker, now), "default");
        assert_eq!((figure(NOW + 900), of_lane(NOW + 900)), (23, 30), "7 are of kinds that are not named");
        let mut between = Roster::new(0);
        record(&mut between, "a", "open", kind(0, json!([])), lanes(0), NOW);
        record(&mut between, "b", "open", kind(2, json!([[100, 2]])), lanes(2), NOW);
        let of_lane = |now| unhandled_in(&between.members(Program::Worker, now), "default");
        assert_eq!((figures(&between, NOW)[0].1, of_lane(NOW)), (2, 2));
        assert_eq!((figures(&between, NOW + 101)[0].1, of_lane(NOW + 101)), (1, 1), "it is still named");
        assert_eq!((figures(&between, NOW + 60_000), of_lane(NOW + 60_000)), (Vec::new(), 0), "silent");
    }
}
