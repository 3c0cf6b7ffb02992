//! Notices: tasks that report alarms, with ids derived from the alarm and its change.

use garenne_protocol::sensor::Timestamp;
use serde_json::{Value, json};
use tokio_postgres::Row;
use uuid::Uuid;

use garenne_sensors::alert;

use crate::alarm::{Alarm, AlarmEvent, Micros, Rule};

/// A task that reports an alarm.
pub(super) struct Notice {
    pub(super) id: String,
    pub(super) alarm: String,
    /// The change of the alarm, which is not reported while the alarm is muted. [`None`] if that was decided already.
    pub(super) event: Option<AlarmEvent>,
    /// The task that changed the alarm. [`None`] if no task has.
    pub(super) task_id: Option<String>,
    /// The trace that the task continues, as in the header `traceparent`.
    pub(super) trace: Option<String>,
    pub(super) kind: &'static str,
    pub(super) payload: Value,
}

/// A notice's fields about the alarm's series and rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoticeSource<'a> {
    pub(super) device: &'a str,
    pub(super) metric: &'a str,
    pub(super) rule: &'a str,
    /// The rule's condition in words.
    pub(super) describes: Option<&'a str>,
    pub(super) severity: &'a str,
    pub(super) unit: Option<&'a str>,
    pub(super) webhook: &'a str,
}

impl<'a> NoticeSource<'a> {
    pub(super) fn new(device: &'a str, metric: &'a str, rule: &'a Rule, describes: &'a str) -> Self {
        Self {
            device,
            metric,
            rule: &rule.name,
            describes: Some(describes),
            severity: rule.severity.name(),
            unit: rule.unit.map(|unit| unit.symbol()),
            webhook: webhook(rule),
        }
    }

    /// Of a row, which has device, metric, rule, severity, condition, unit and webhook at these places.
    pub(super) fn stored(row: &'a Row, places: [usize; 7]) -> Self {
        let [device, metric, rule, severity, describes, unit, webhook] = places;
        Self {
            device: row.get(device),
            metric: row.get(metric),
            rule: row.get(rule),
            severity: row.get(severity),
            describes: row.get(describes),
            unit: row.get(unit),
            webhook: row.get::<_, Option<_>>(webhook).unwrap_or(alert::DEFAULT_WEBHOOK),
        }
    }

    /// The `alert.notify` task that reports that an alarm was raised or is over.
    pub(super) fn alert(&self, task_id: Option<&str>, alarm: &Alarm, event: AlarmEvent) -> Notice {
        let (state, time) = match event {
            AlarmEvent::Raised => ("raised", alarm.since),
            AlarmEvent::Cleared => ("cleared", alarm.ended.unwrap_or(alarm.since)),
        };
        let id = derived_id(&[&alarm.id, state]);
        let notice = self.notice(id, state, time, alarm);
        Notice { event: Some(event), task_id: task_id.map(str::to_owned), ..notice }
    }

    /// The `alert.notify` task that reports again that an alarm is open, because of `reason`. `previous` is the time of the
    /// notice before, so that the same reminder has the same id.
    pub(super) fn reminder(&self, alarm: &Alarm, reason: &str, previous: Micros, now: Micros) -> Notice {
        let id = derived_id(&[&alarm.id, "reminder", &previous.to_string()]);
        let mut notice = self.notice(id, "reminder", now, alarm);
        notice.payload["data"]["reason"] = reason.into();
        notice
    }

    fn notice(&self, id: String, state: &str, time: Micros, alarm: &Alarm) -> Notice {
        let shown = |at: Micros| Timestamp::from_micros(at).map(|at| at.to_string()).unwrap_or_default();
        let mut data = json!({
            "state": state,
            "alarm": alarm.id,
            "rule": self.rule,
            "says": self.describes,
            "severity": self.severity,
            "device": self.device,
            "metric": self.metric,
            "since": shown(alarm.since),
            "ended": alarm.ended.map(shown),
            "value": alarm.value,
            "unit": self.unit,
        });
        if let Some(fields) = data.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        let payload =
            json!({ "webhook": self.webhook, "type": "reading.alarm", "time": shown(time), "data": data });
        let alarm = alarm.id.clone();
        Notice { id, alarm, event: None, task_id: None, trace: None, kind: alert::KIND, payload }
    }
}

impl Notice {
    /// States that the alarm is over because its readings were replaced.
    pub(super) fn withdrawn(mut self) -> Self {
        self.payload["data"]["withdrawn"] = true.into();
        self
    }

    /// States why the alarm is over although no reading cleared it, or that it is of a device that never sent.
    pub(super) fn with_reason(mut self, reason: &str) -> Self {
        self.payload["data"]["reason"] = reason.into();
        self
    }
}

/// The webhook that receives a rule's alerts.
pub(super) fn webhook(rule: &Rule) -> &str {
    rule.webhook.as_deref().unwrap_or(alert::DEFAULT_WEBHOOK)
}

pub(super) fn alarm_id(device: &str, metric: &str, rule: &str, since: Micros) -> String {
    derived_id(&["alarm", device, metric, rule, &since.to_string()])
}

pub(super) fn derived_id(parts: &[&str]) -> String {
    uuid(parts).to_string()
}

/// A UUID of version 5. Names contain no control characters, so that different parts never join to the same
/// text.
pub(super) fn uuid(parts: &[&str]) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, parts.join("\u{1f}").as_bytes())
}
