//! The kinds whose tasks wait because no running worker has a handler for them, over the whole fleet.

use std::{cmp::Reverse, collections::BTreeMap};

use garenne_protocol::heartbeat::UnhandledBeat;

use super::roster::{MemberView, State};

/// The sums of these workers' reports, by lane and kind, those with the most tasks first.
pub fn unhandled(workers: &[MemberView]) -> Vec<UnhandledBeat> {
    let mut kinds = BTreeMap::<_, UnhandledBeat>::new();
    for worker in workers.iter().filter(|worker| worker.state != State::Stopped) {
        let reported = worker.process.heartbeat().map_or(&[][..], |beat| &beat.unhandled);
        for beat in reported {
            let sum =
                kinds.entry((&beat.lane, &beat.kind)).or_insert(UnhandledBeat { tasks: 0, ..beat.clone() });
            sum.tasks = sum.tasks.saturating_add(beat.tasks);
            sum.since = sum.since.min(beat.since);
        }
    }
    let mut kinds: Vec<_> = kinds.into_values().collect();
    kinds.sort_by_key(|kind| Reverse(kind.tasks));
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Roster;
    use garenne_protocol::heartbeat::Program;

    #[test]
    fn the_reports_of_all_workers_are_summed_by_lane_and_kind() {
        let mut roster = Roster::new(0);
        for (id, stance, tasks, since) in
            [("a", "open", 3, 500), ("b", "open", 4, 200), ("c", "stopped", 9, 1)]
        {
            let beat = serde_json::json!({
                "program": "worker", "id": id, "incarnation": id, "started_at": 0, "at": 9_000,
                "every_ms": 1000, "stance": stance,
                "unhandled": [{"lane": "default", "kind": "email.send", "tasks": tasks, "since": since},
                              {"lane": id, "kind": "email.send", "tasks": 1, "since": since}],
            });
            roster.record(serde_json::from_value(beat).unwrap(), 9_000);
        }
        let found = unhandled(&roster.members(Program::Worker, 9_000));
        let found: Vec<_> = found.iter().map(|it| (it.lane.as_str(), it.tasks, it.since)).collect();
        assert_eq!(found, [("default", 7, 200), ("a", 1, 500), ("b", 1, 200)]);
    }
}
