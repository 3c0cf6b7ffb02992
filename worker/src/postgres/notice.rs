//! What is told of an alarm, under an id that says which.

use garenne_protocol::sensor::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    alarm::{
        Micros,
        reconcile::{Alarm, News},
        rules::Rule,
    },
    builtin::alert,
};

/// What is to be told: a task to start when the owner is settled.
pub(super) struct Notice {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) kind: &'static str,
    pub(super) payload: Value,
}

/// An alert about an alarm.
pub(super) fn notice(
    device: &str,
    metric: &str,
    owner: &str,
    rule: &Rule,
    alarm: &Alarm,
    news: News,
) -> Notice {
    let state = match news {
        News::Raised => "raised",
        News::Cleared => "cleared",
    };
    let shown = |at: Micros| Timestamp::from_micros(at).map(|at| at.to_string()).unwrap_or_default();
    let time = match (news, alarm.ended) {
        (News::Cleared, Some(ended)) => ended,
        _ => alarm.since,
    };
    let mut data = json!({
        "state": state,
        "alarm": alarm.id,
        "rule": rule.name,
        "says": rule.condition.describe(),
        "device": device,
        "metric": metric,
        "since": shown(alarm.since),
    });
    let mut add = |field: &str, value: Option<Value>| {
        if let (Some(value), Some(data)) = (value, data.as_object_mut()) {
            data.insert(field.to_owned(), value);
        }
    };
    add("ended", alarm.ended.map(|at| shown(at).into()));
    add("value", alarm.value.map(Value::from));
    add("unit", rule.unit.map(|unit| unit.symbol().into()));
    let webhook = rule.webhook.as_deref().unwrap_or(alert::DEFAULT_WEBHOOK);
    let payload = json!({ "webhook": webhook, "type": "reading.alarm", "time": shown(time), "data": data });
    let id = named(&[&alarm.id, state]);
    Notice { id, owner: owner.to_owned(), kind: alert::task::KIND, payload }
}

pub(super) fn alarm_id(device: &str, metric: &str, rule: &str, since: Micros) -> String {
    named(&["alarm", device, metric, rule, &since.to_string()])
}

pub(super) fn named(parts: &[&str]) -> String {
    // No name holds a control character, so different parts never read the same.
    Uuid::new_v5(&Uuid::NAMESPACE_OID, parts.join("\u{1f}").as_bytes()).to_string()
}
