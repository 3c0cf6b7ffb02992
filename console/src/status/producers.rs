//! Gateways and bridges as tables.

use std::collections::BTreeMap;

use garenne_operator::table::{cut, duration, grouped, lay_out};
use garenne_protocol::heartbeat::{Heartbeat, Program, SpoolBeat};
use indicatif::BinaryBytes;

use crate::fleet::{MemberView, Roster};

/// Most characters of a bridge's filters.
const FILTERS_WIDTH: usize = 40;

/// The tables; if both are empty, a line says so.
pub(super) fn tables(roster: &Roster, now: i64) -> String {
    let members = |program| roster.members(program, now);
    let (gateways, bridges) = (members(Program::Gateway), members(Program::Bridge));
    if gateways.is_empty() && bridges.is_empty() {
        return "no gateway or bridge sent a heartbeat; --wait 10s listens for longer\n".to_owned();
    }
    let mut text = String::new();
    if !gateways.is_empty() {
        let columns = ["gateway", "state", "connections", "responses", "spool"];
        text += &lay_out(&columns, gateways.iter().map(|member| gateway_row(member, now)));
    }
    if !bridges.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        let columns = ["bridge", "state", "MQTT broker", "subscriptions", ">in flight", "messages", "spool"];
        text += &lay_out(&columns, bridges.iter().map(|member| bridge_row(member, now)));
    }
    text
}

fn gateway_row(member: &MemberView, now: i64) -> [String; 5] {
    let gateway = member.process.heartbeat().and_then(|beat| beat.gateway.clone()).unwrap_or_default();
    let connections = gateway.connections.iter().map(|(state, n)| format!("{n} {state}"));
    [
        member.process.id().to_owned(),
        member.state.to_string(),
        connections.collect::<Vec<_>>().join(", "),
        counts(&gateway.requests),
        spool(member.process.heartbeat(), now),
    ]
}

fn bridge_row(member: &MemberView, now: i64) -> [String; 7] {
    let bridge = member.process.heartbeat().and_then(|beat| beat.bridge.clone()).unwrap_or_default();
    let connected = if bridge.connected { "" } else { " (not subscribed)" };
    [
        member.process.id().to_owned(),
        member.state.to_string(),
        format!("{}{connected}", bridge.broker),
        cut(&bridge.subscriptions.join(", "), FILTERS_WIDTH),
        grouped(bridge.in_flight),
        counts(&bridge.messages),
        spool(member.process.heartbeat(), now),
    ]
}

fn counts(of: &BTreeMap<String, u64>) -> String {
    let counts = of.iter().map(|(name, count)| format!("{name}: {}", grouped(*count)));
    counts.collect::<Vec<_>>().join(", ")
}

/// The records that wait in the spool, `-` without one.
fn spool(beat: Option<&Heartbeat>, now: i64) -> String {
    let Some(SpoolBeat { records, bytes, oldest_at, set_aside, set_aside_bytes }) =
        beat.and_then(|beat| beat.spool)
    else {
        return "-".to_owned();
    };
    let mut text = match oldest_at {
        _ if records == 0 => "empty".to_owned(),
        None => format!("{} tasks, {}", grouped(records), BinaryBytes(bytes)),
        Some(oldest) => {
            let age = duration(u64::try_from(now - oldest).unwrap_or(0));
            format!("{} tasks, {}, oldest {age}", grouped(records), BinaryBytes(bytes))
        }
    };
    if set_aside > 0 {
        text += &format!("; {set_aside} segments ({}) set aside", BinaryBytes(set_aside_bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn record(roster: &mut Roster, program: &str, id: &str, content: Value) {
        let mut beat = json!({
            "program": program, "id": id, "incarnation": id, "started_at": 0, "at": 9_000,
            "every_ms": 1000, "stance": "open",
        });
        beat.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        roster.record(serde_json::from_value(beat).unwrap(), 9_000);
    }

    fn lines(roster: &Roster) -> Vec<String> {
        let text = tables(roster, 10_000);
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn gateways_and_bridges_are_shown_with_their_spools() {
        let mut roster = Roster::new(0);
        record(
            &mut roster,
            "gateway",
            "g-8080",
            json!({"gateway": {"connections": {"open": 3}, "requests": {"202": 1_200}},
                   "spool": {"records": 0, "bytes": 36, "set_aside": 2, "set_aside_bytes": 2_097_152}}),
        );
        record(
            &mut roster,
            "bridge",
            "site",
            json!({"bridge": {"broker": "mqtt:1883", "connected": true, "in_flight": 7,
                              "subscriptions": ["zigbee2mqtt/#", "tele/+/SENSOR"],
                              "messages": {"mapped": 1_234, "unmapped": 5}},
                   "spool": {"records": 1_500, "bytes": 3_145_728, "oldest_at": 5_000}}),
        );
        record(&mut roster, "bridge", "down", json!({"bridge": {"broker": "mqtt:1883"}}));
        assert_eq!(
            lines(&roster),
            [
                "gateway state connections responses spool",
                "g-8080 open 3 open 202: 1,200 empty; 2 segments (2.00 MiB) set aside",
                "",
                "bridge state MQTT broker subscriptions in flight messages spool",
                "down open mqtt:1883 (not subscribed) 0 -",
                "site open mqtt:1883 zigbee2mqtt/#, tele/+/SENSOR 7 mapped: 1,234, unmapped: 5 1,500 tasks, 3.00 MiB, oldest 5.0s",
            ]
        );
    }

    #[test]
    fn a_line_says_that_there_is_neither() {
        let expected = "no gateway or bridge sent a heartbeat; --wait 10s listens for longer";
        assert_eq!(lines(&Roster::new(0)), [expected]);
    }
}
