//! Follow-up tasks that alarms start, with ids derived from their cause.

use garenne_protocol::sensor::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::watch;
use garenne_sensors::alarm::{Alarm, AlarmEvent, Micros, Rule};
use garenne_sensors::alert;

/// A follow-up task.
pub(super) struct Notice {
    pub(super) id: String,
    /// The task that starts it.
    pub(super) task_id: String,
    pub(super) kind: &'static str,
    pub(super) payload: Value,
}

/// The `alert.notify` task that reports an alarm.
pub(super) fn alert_notice(
    device: &str,
    metric: &str,
    task_id: &str,
    rule: &Rule,
    alarm: &Alarm,
    event: AlarmEvent,
) -> Notice {
    let (state, time) = match event {
        AlarmEvent::Raised => ("raised", alarm.since),
        AlarmEvent::Cleared => ("cleared", alarm.ended.unwrap_or(alarm.since)),
    };
    let shown = |at: Micros| Timestamp::from_micros(at).map(|at| at.to_string()).unwrap_or_default();
    let mut data = json!({
        "state": state,
        "alarm": alarm.id,
        "rule": rule.name,
        "says": rule.condition.describe(),
        "device": device,
        "metric": metric,
        "since": shown(alarm.since),
        "ended": alarm.ended.map(shown),
        "value": alarm.value,
        "unit": rule.unit.map(|unit| unit.symbol()),
    });
    if let Some(fields) = data.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let webhook = rule.webhook.as_deref().unwrap_or(alert::DEFAULT_WEBHOOK);
    let payload = json!({ "webhook": webhook, "type": "reading.alarm", "time": shown(time), "data": data });
    let id = derived_id(&[&alarm.id, state]);
    Notice { id, task_id: task_id.to_owned(), kind: alert::KIND, payload }
}

/// The `reading.watch` task that checks a device's metric for silence.
pub(super) fn watch_notice(device: &str, metric: &str, task_id: &str, rule: &Rule) -> Notice {
    Notice {
        id: derived_id(&["watch", device, metric, &rule.name, task_id]),
        task_id: task_id.to_owned(),
        kind: watch::KIND,
        payload: json!({ "device": device, "metric": metric, "rule": rule.name }),
    }
}

pub(super) fn alarm_id(device: &str, metric: &str, rule: &str, since: Micros) -> String {
    derived_id(&["alarm", device, metric, rule, &since.to_string()])
}

fn derived_id(parts: &[&str]) -> String {
    uuid(parts).to_string()
}

/// A UUID of version 5. Names contain no control characters, so that different parts never join to the same
/// text.
pub(super) fn uuid(parts: &[&str]) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, parts.join("\u{1f}").as_bytes())
}
