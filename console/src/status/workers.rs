//! Workers and groups as tables.

use garenne_operator::table::{grouped, lay_out};
use garenne_protocol::heartbeat::Program;

use crate::fleet::{Pauses, Roster, WORKER_COLUMNS, groups, worker_row};

/// The tables; without a worker, a line says so.
pub(super) fn tables(roster: &Roster, now: i64) -> String {
    let workers = roster.members(Program::Worker, now);
    let mut text = if workers.is_empty() {
        "no worker answered and none is on record\n".to_owned()
    } else {
        lay_out(&WORKER_COLUMNS, workers.iter().map(worker_row))
    };
    let groups = groups(&workers);
    if !groups.is_empty() {
        let rows = groups.into_iter().map(|(name, group)| {
            let paused = match group.paused {
                0 => "-".to_owned(),
                count => format!("{count} workers"),
            };
            [name, grouped(group.running as u64), grouped(group.queued as u64), paused]
        });
        text += &format!("\n{}", lay_out(&["group", ">running", ">queued", "paused on"], rows));
    }
    let pauses = Pauses::of(&workers);
    let paused: Vec<_> = pauses
        .all()
        .map(|(noun, name, count)| [noun.to_owned(), name.to_owned(), format!("{count} workers")])
        .collect();
    if !paused.is_empty() {
        text += &format!("\n{}", lay_out(&["paused", "name", "on"], paused));
    }
    text
}

#[cfg(test)]
mod tests {
    use garenne_protocol::heartbeat::Heartbeat;

    use super::*;

    #[test]
    fn a_silent_worker_comes_first_with_its_last_known_task() {
        let mut roster = Roster::new(0);
        let beat = |id: &str, at: i64| -> Heartbeat {
            serde_json::from_value(serde_json::json!({
                "program": "worker", "id": id, "incarnation": id, "started_at": 0, "at": at,
                "every_ms": 1000, "stance": "open", "running": 1, "paused": ["g"], "groups": {"import-7": {"running": 1, "queued": 3}},
                "sinks": {"postgres": {"up": id == "b"}, "stdout": {"up": true}},
                "lanes": {"fast": {"slots": 4, "busy": 1, "queued": 1200, "open": true},
                          "quarantine": {"slots": 1}},
                "tasks": [{"id": "t-1", "kind": "bench.deaf", "lane": "fast", "seconds": 61.0, "progress": 0.25,
                           "group": "import-7"}],
            }))
            .unwrap()
        };
        roster.record(beat("b", 0), 0);
        roster.record(beat("a", 9_000), 9_000);
        roster.expect("never-seen", 9_000);
        let text = tables(&roster, 10_000);
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines[1..4],
            [
                "b silent fast 1/4 +1,200; paused: g bench.deaf 25% t-1 (group import-7) 61s 10s ago",
                "never-seen silent never",
                "a open fast 1/4 +1,200; paused: g; sink postgres down bench.deaf 25% t-1 (group import-7) 61s 1.0s ago",
            ]
        );
        assert_eq!(
            lines[5..8],
            ["group running queued paused on", "g 0 0 2 workers", "import-7 2 6 -"],
            "{text}"
        );
    }

    #[test]
    fn a_line_says_that_there_is_no_worker() {
        assert_eq!(tables(&Roster::new(0), 0), "no worker answered and none is on record\n");
    }
}
