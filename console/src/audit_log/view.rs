//! Records as tables and JSON.

use std::collections::{HashMap, hash_map::Entry};

use garenne_operator::table::lay_out;
use garenne_protocol::audit::{AuditRecord, AuditState};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// One line per command: its first record, with the result of its last.
pub(super) fn table(records: &[AuditRecord]) -> String {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut commands: Vec<(&AuditRecord, &AuditRecord)> = Vec::new();
    for record in records {
        match places.entry(&record.id) {
            Entry::Occupied(place) => commands[*place.get()].1 = record,
            Entry::Vacant(place) => {
                place.insert(commands.len());
                commands.push((record, record));
            }
        }
    }
    let rows = commands.into_iter().map(|(record, last)| {
        let from = record.actor.address.as_ref().unwrap_or(&record.actor.host);
        [
            time(record.at),
            record.actor.name.clone(),
            format!("{} {from}", record.actor.via),
            record.actor.amqp_user.clone().unwrap_or_default(),
            record.command.clone(),
            words(&record.arguments),
            result(last),
        ]
    });
    lay_out(&["time", "who", "from", "broker user", "command", "arguments", "result"], rows)
}

fn result(last: &AuditRecord) -> String {
    match last.state {
        AuditState::Started => {
            "unknown: interrupted, still running, or refused because this record was confirmed too late"
                .to_owned()
        }
        AuditState::Done if last.result.is_null() => "done".to_owned(),
        AuditState::Done => words(&last.result),
        AuditState::Failed => format!("failed: {}", last.error.as_deref().unwrap_or_default()),
    }
}

/// `name=value` for each field that is not empty.
fn words(value: &Value) -> String {
    let Value::Object(fields) = value else { return value.to_string() };
    let shown = fields.iter().filter_map(|(name, value)| match value {
        Value::Null | Value::Bool(false) => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(fields) if fields.is_empty() => None,
        Value::String(text) => Some(format!("{name}={text}")),
        Value::Array(items) => {
            let items: Vec<_> =
                items.iter().map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned)).collect();
            Some(format!("{name}={}", items.join(",")))
        }
        value => Some(format!("{name}={value}")),
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn time(ms: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(ms.div_euclid(1000));
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| ms.to_string())
}

#[cfg(test)]
mod tests {
    use garenne_protocol::audit::AuditActor;
    use serde_json::json;

    use super::*;

    fn record(id: &str, state: AuditState) -> AuditRecord {
        let actor = AuditActor {
            name: "anna".into(),
            via: "dashboard".into(),
            address: Some("192.0.2.7".into()),
            amqp_user: Some("garenne-console".into()),
            host: "h".into(),
        };
        AuditRecord {
            id: id.into(),
            at: 1_767_225_600_000,
            command: "dead.replay".into(),
            state,
            actor,
            arguments: json!({"id": ["a", "b"], "all": false, "kind": []}),
            result: Value::Null,
            error: None,
        }
    }

    #[test]
    fn a_command_is_one_line_and_one_without_a_result_says_so() {
        let done =
            AuditRecord { result: json!({"moved": 2, "failures": {}}), ..record("1", AuditState::Done) };
        let failed = AuditRecord { error: Some("no broker".into()), ..record("3", AuditState::Failed) };
        let started = ["1", "2", "3"].map(|id| record(id, AuditState::Started));
        let text = table(&[&started[..], &[done, failed]].concat());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[1].contains("2026-01-01T00:00:00Z") && lines[1].contains("dashboard 192.0.2.7"),
            "{text}"
        );
        assert!(lines[1].contains("id=a,b") && lines[1].ends_with("moved=2"), "{text}");
        assert!(
            lines[2].ends_with(
                "unknown: interrupted, still running, or refused because this record was confirmed too late"
            ),
            "{text}"
        );
        assert!(lines[3].ends_with("failed: no broker"), "{text}");
    }
}
