//! Workers and gateways as tables.

use garenne_protocol::heartbeat::Program;

use crate::{
    fleet::{MemberView, Roster, lanes_line},
    table::{cut, duration, grouped, lay_out},
};

/// Ids are cut to this width.
const MAX_ID_WIDTH: usize = 40;

/// Columns of the table of workers.
const COLUMNS: [&str; 6] =
    ["worker", "state", "lanes: busy/slots +queued", "longest task", "for", "last heartbeat"];

fn row(member: &MemberView) -> [String; 6] {
    let beat = member.process.heartbeat();
    let heard = member.heard_ms_ago.map_or("never".to_owned(), |ms| format!("{} ago", duration(ms)));
    let longest = beat.and_then(|beat| beat.tasks.first());
    let task = longest.map_or_else(String::new, |task| {
        let done = task.progress.map(|done| format!(" {:.0} %", done * 100.0)).unwrap_or_default();
        format!("{} {}{done}", task.kind, cut(&task.id, MAX_ID_WIDTH))
    });
    let since = longest.map_or_else(String::new, |task| duration((task.seconds * 1e3) as u64));
    let lanes = beat.map(|beat| lanes_line(&beat.lanes, &beat.paused)).unwrap_or_default();
    [cut(member.process.id(), MAX_ID_WIDTH), member.state.to_string(), lanes, task, since, heard]
}

/// Both tables; an empty one is replaced by a line.
pub(super) fn tables(roster: &Roster, now: i64) -> String {
    let workers = roster.members(Program::Worker, now);
    let mut text = if workers.is_empty() {
        "no worker answered and none is on record\n".to_owned()
    } else {
        lay_out(&COLUMNS, workers.iter().map(row))
    };
    let gateways: Vec<_> = roster
        .members(Program::Gateway, now)
        .into_iter()
        .map(|member| {
            let gateway =
                member.process.heartbeat().and_then(|beat| beat.gateway.clone()).unwrap_or_default();
            let connections = gateway.connections.iter().map(|(state, n)| format!("{n} {state}"));
            let requests = gateway.requests.iter().map(|(status, n)| format!("{status}: {}", grouped(*n)));
            vec![
                member.process.id().to_owned(),
                member.state.to_string(),
                connections.collect::<Vec<_>>().join(", "),
                requests.collect::<Vec<_>>().join(", "),
            ]
        })
        .collect();
    if gateways.is_empty() {
        text += "\nno gateway sent a heartbeat: gateways send one every 2s, use --wait 3s to include them\n";
    } else {
        let columns = ["gateway", "state", "connections", "responses"];
        text += &format!("\n{}", lay_out(&columns, gateways));
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
                "every_ms": 1000, "stance": "open", "running": 1, "paused": ["g"],
                "lanes": {"fast": {"slots": 4, "busy": 1, "queued": 1200, "open": true},
                          "quarantine": {"slots": 1}},
                "tasks": [{"id": "t-1", "kind": "bench.deaf", "lane": "fast", "seconds": 61.0, "progress": 0.25}],
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
                "b silent fast 1/4 +1,200; paused: g bench.deaf t-1 25 % 61s 10s ago",
                "never-seen silent never",
                "a open fast 1/4 +1,200; paused: g bench.deaf t-1 25 % 61s 1.0s ago",
            ]
        );
    }

    #[test]
    fn empty_tables_are_replaced_by_a_line() {
        assert_eq!(
            tables(&Roster::new(0), 0),
            "no worker answered and none is on record\n\n\
             no gateway sent a heartbeat: gateways send one every 2s, use --wait 3s to include them\n"
        );
    }
}
