//! `alert.notify`: sends an alert to a webhook.
//!
//! A long, I/O-bound kind, and an example for [`garenne_common::resilience`]. Alerts to one webhook are batched.
//! Each request has a deadline and a few immediate retries with jitter, and each host has a circuit breaker.
//! Failures that last go to the retry ladder, which holds no worker while it waits.

use std::{sync::Arc, time::Duration};

use garenne_common::config::ConfigError;
use garenne_protocol::{
    sensor::Timestamp,
    task::{ContentType, Kind, NewTask, TaskId},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use garenne::{RetryPolicy, TaskContext, TaskError, TaskOptions, WorkerBuilder, json_payload};

mod address;
mod batch_sender;
mod delivery;
mod payload_urls;
pub mod settings;
mod span;
mod webhook_client;
mod webhook_sender;

pub use delivery::Delivered;
use delivery::{DeliveryError, OutgoingAlert};
pub use settings::{AlertSettings, DEFAULT_WEBHOOK};
use webhook_sender::WebhookSender;

/// The kind.
pub const KIND: &str = "alert.notify";

/// Time limit of a task: the batch window and a few requests of the longest timeout.
const DEADLINE: Duration = Duration::from_secs(300);

/// The deferral while all requests to the host are taken, and the shortest one while its circuit is open.
const MIN_DEFERRAL: Duration = Duration::from_secs(1);

/// Limit for the `data` of an alert, in bytes of JSON.
pub const MAX_DATA_BYTES: usize = 16 * 1024;

/// Limit for the `type` of an alert, in bytes.
pub const MAX_TYPE_BYTES: usize = 128;

/// The payload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// The name of a webhook in the settings; `default` if neither this nor `url` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// Another URL, http or https, whose host `alert.payload_urls.hosts` allows. Requests to it are not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The type of event, such as `reading.threshold`: 1 to 128 of a-z A-Z 0-9 . _ -
    #[serde(rename = "type", default = "default_type")]
    pub kind: String,
    /// The time of the event; the time of sending if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Data for the receiver, at most 16 KiB of JSON.
    #[serde(default)]
    pub data: Map<String, Value>,
}

json_payload!(Alert, KIND);

/// The kind of tasks that tell that the notice of an alarm was delivered or is a dead letter.
pub const NOTIFIED_KIND: &str = "reading.notified";

/// Tells that the notice of an alarm was delivered or is a dead letter. It is stored as the result of its task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notified {
    /// The id of the notice and its task.
    pub notice: String,
}

json_payload!(Notified, NOTIFIED_KIND);

/// Registers the kind of tasks that tell the end of a notice, for a worker whose sink stores alarms.
pub fn register_notified(builder: WorkerBuilder) -> WorkerBuilder {
    let handler = |notified: Notified| async move { Ok::<_, TaskError>(notified) };
    builder.handle_with(handler, TaskOptions::short())
}

fn default_type() -> String {
    "alert".to_owned()
}

impl Alert {
    /// Checks the fields, except for the destination, which depends on the settings. An error names the field and the
    /// allowed values.
    pub fn check(&self) -> Result<(), String> {
        if self.webhook.is_some() && self.url.is_some() {
            return Err("webhook and url are both given; expected one of them".to_owned());
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_TYPE_BYTES).contains(&self.kind.len()) || !self.kind.bytes().all(allowed) {
            let length = self.kind.len();
            return Err(format!(
                "type has {length} bytes; expected 1 to {MAX_TYPE_BYTES} of a-z A-Z 0-9 . _ -"
            ));
        }
        let size = serde_json::to_vec(&self.data).map_or(usize::MAX, |json| json.len());
        if size > MAX_DATA_BYTES {
            return Err(format!("data has {size} bytes; at most {MAX_DATA_BYTES} are allowed"));
        }
        Ok(())
    }
}

/// Registers the kind. `has_alarms` says that a sink of the worker stores alarms, and so records the end of their notices.
/// Other workers tell it by a task of the kind [`NOTIFIED_KIND`].
pub fn register(
    builder: WorkerBuilder,
    settings: AlertSettings,
    has_alarms: bool,
) -> Result<WorkerBuilder, ConfigError> {
    let sender = Arc::new(WebhookSender::new(settings)?);
    let destinations = Arc::clone(&sender);
    let host = move |body: &[u8]| {
        let alert: Alert = serde_json::from_slice(body).ok()?;
        destinations.destination(alert.webhook.as_deref(), alert.url.as_deref()).ok().map(|it| it.host_key())
    };
    let handler = move |cx: TaskContext, alert: Alert| {
        let sender = Arc::clone(&sender);
        async move {
            let is_notice = alert.data.contains_key("alarm");
            let delivered = notify(&cx, &sender, alert).await?;
            if is_notice && !has_alarms {
                // If no lane takes it, the next notice of the alarm leaves later.
                let notified = Notified { notice: cx.id().to_string() };
                if let Err(error) = cx.follow_up(NOTIFIED_KIND, &notified) {
                    tracing::debug!(error = error.message(), "cannot tell that a notice was delivered");
                }
            }
            Ok::<_, TaskError>(delivered)
        }
    };
    // Retries for more than half a day, at most an hour apart, so that an operator has time to repair the receiver.
    let retry = RetryPolicy::default().attempts(20).first(Duration::from_secs(5));
    // Alerts to a slow host hold their workers for a long time.
    let options = TaskOptions::long().deadline(DEADLINE).retry(retry).half_of_lane_per_key(host);
    // If the task is lost, the next notice of the alarm leaves later.
    let when_dead = move |id: &TaskId, body: &[u8]| {
        let alert: Alert = serde_json::from_slice(body).ok()?;
        (!has_alarms && alert.data.contains_key("alarm")).then(|| notified(id))
    };
    Ok(builder.handle_with(handler, options.when_dead(when_dead)))
}

/// The task that tells the end of a notice whose task has failed.
fn notified(notice: &TaskId) -> NewTask {
    let body = serde_json::to_vec(&Notified { notice: notice.to_string() }).expect("text");
    let kind = Kind::parse(NOTIFIED_KIND).expect("a constant");
    NewTask::with_id(TaskId::derived(notice, NOTIFIED_KIND), kind, ContentType::Json, body)
}

async fn notify(cx: &TaskContext, sender: &WebhookSender, alert: Alert) -> Result<Delivered, TaskError> {
    alert.check().map_err(TaskError::invalid)?;
    let Alert { webhook, url, kind, time, data } = alert;
    let destination = sender.destination(webhook.as_deref(), url.as_deref()).map_err(TaskError::reject)?;
    let time = time.unwrap_or_else(|| OffsetDateTime::now_utc().into());
    let (id, trace, traces) = (cx.id().clone(), cx.trace(), cx.traces().clone());
    let alert = OutgoingAlert { id, kind, timestamp: time, data, delivered: Arc::default(), trace, traces };
    let delivered = tokio::select! {
        delivered = sender.deliver(destination, alert) => delivered,
        // The batch may still be sent. The receiver recognizes the repetition by the alert's id.
        () = cx.token().cancelled() => return Err(TaskError::interrupted()),
    };
    delivered.map_err(|error| match &*Arc::clone(&error) {
        DeliveryError::InvalidDestination(_) | DeliveryError::Rejected { .. } => TaskError::reject(error),
        DeliveryError::ServerError { retry_after: Some(wait), .. } => TaskError::retry_after(error, *wait),
        DeliveryError::ServerError { retry_after: None, .. } | DeliveryError::Unreachable { .. } => {
            TaskError::retry(error)
        }
        // No request was made, so the task is deferred without counting an attempt.
        DeliveryError::CircuitOpen { remaining, .. } => TaskError::snooze((*remaining).max(MIN_DEFERRAL)),
        DeliveryError::Busy { .. } => TaskError::snooze(MIN_DEFERRAL),
        DeliveryError::Closed => TaskError::interrupted(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use garenne::{
        Worker, WorkerConfig,
        handler::Payload,
        testing::{TestOutcome, TestWorker},
    };

    async fn verdict(body: &str) -> String {
        let builder = Worker::builder(WorkerConfig::default());
        let worker = TestWorker::new(register(builder, AlertSettings::default(), false).unwrap()).unwrap();
        match worker.run("alert.notify", body).await {
            TestOutcome::Dead { reason, error } => format!("{reason}: {error}"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_invalid_alert_is_a_dead_letter_with_the_reason() {
        let both = verdict(r#"{"webhook":"a","url":"http://b/"}"#).await;
        assert_eq!(both, "invalid-payload: webhook and url are both given; expected one of them");
        assert_eq!(
            verdict("{}").await,
            "rejected: no webhook \"default\": alert.webhooks.default.url is not set"
        );
        let private = verdict(r#"{"url":"http://169.254.169.254/latest/meta-data/"}"#).await;
        assert_eq!(
            private,
            "rejected: url: host \"169.254.169.254\" is not allowed in payloads; alert.payload_urls.hosts allows hosts"
        );
        let typed = verdict(r#"{"type":"a b"}"#).await;
        assert_eq!(typed, "invalid-payload: type has 3 bytes; expected 1 to 128 of a-z A-Z 0-9 . _ -");
        let large = verdict(&format!(r#"{{"data":{{"x":"{}"}}}}"#, "x".repeat(MAX_DATA_BYTES))).await;
        assert_eq!(large, "invalid-payload: data has 16392 bytes; at most 16384 are allowed");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Arbitrary bytes, and JSON that resembles an alert, cause no panic.
        #[test]
        fn any_body_is_parsed_or_refused_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            url in "(http|https|ftp|file|)(:|://)[a-z0-9.:@\\[\\]/%-]{0,30}",
            kind in "\\PC{0,200}",
            time in prop_oneof![any::<f64>().prop_map(Value::from), any::<i64>().prop_map(Value::from), ".{0,30}".prop_map(Value::from)],
            depth in 0_usize..200,
        ) {
            let nested = "[".repeat(depth) + &"]".repeat(depth);
            let near = format!(r#"{{"url":{},"type":{},"time":{time},"data":{{"x":{}}}}}"#, Value::from(url.as_str()), Value::from(kind), if depth == 0 { "1" } else { &nested });
            static SENDER: LazyLock<WebhookSender> =
                LazyLock::new(|| WebhookSender::new(AlertSettings::default()).unwrap());
            for body in [bytes.as_slice(), near.as_bytes()] {
                if let Ok(alert) = <Alert as Payload>::read(ContentType::Json, body)
                    && alert.check().is_ok()
                {
                    let _ = SENDER.destination(alert.webhook.as_deref(), alert.url.as_deref());
                }
            }
        }
    }
}
