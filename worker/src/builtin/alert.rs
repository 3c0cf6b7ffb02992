//! `alert.notify`: tells somebody outside, by a webhook.
//!
//! Long and I/O-bound, and the example for leaning on [`garenne_common::resilience`]: a deadline for
//! each request, a few quick retries with jitter, a breaker per host, batches per webhook. What that
//! does not heal goes through the fleet's own ladder, which waits without holding anything.

use garenne_protocol::sensor::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod address;
mod courier;
mod post;
pub mod settings;
mod signature;
mod span;
pub mod task;

pub use settings::AlertSettings;

/// The webhook that is meant when an alert names none.
pub const DEFAULT_WEBHOOK: &str = "default";

/// The largest `data` of an alert, in bytes of JSON.
pub const MOST_DATA: usize = 16 * 1024;

/// The longest `type`, in bytes.
pub const LONGEST_TYPE: usize = 128;

/// The task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// A webhook of the settings, by name; `default` when neither this nor `url` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// Any other URL, http or https. Not signed, unless a webhook of the settings has the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What happened, in dotted words, such as `reading.threshold`.
    #[serde(rename = "type", default = "alert")]
    pub kind: String,
    /// When it happened; when it was sent, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Whatever the receiver should know, at most 16 KiB of JSON.
    #[serde(default)]
    pub data: Map<String, Value>,
}

fn alert() -> String {
    "alert".to_owned()
}

/// What became of an alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Delivered {
    /// The `webhook-id` it travelled under: its own id, or one for all alerts of its batch.
    pub webhook_id: String,
    /// The status of the answer, 200 to 299.
    pub status: u16,
    /// How many alerts travelled together.
    pub batch: usize,
}

/// Why an alert cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAlert {
    /// Two destinations.
    #[error("webhook and url are both given, keep one")]
    Both,
    /// A type that is none.
    #[error("type has {0} bytes; 1 to {LONGEST_TYPE} of a-z A-Z 0-9 . _ - are allowed")]
    Type(usize),
    /// Too much.
    #[error("data has {0} bytes, {MOST_DATA} are allowed")]
    Data(usize),
}

impl Alert {
    /// Checks what can be told without the settings.
    ///
    /// # Errors
    /// [`BadAlert`] names the field and what is allowed.
    pub fn check(&self) -> Result<(), BadAlert> {
        if self.webhook.is_some() && self.url.is_some() {
            return Err(BadAlert::Both);
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=LONGEST_TYPE).contains(&self.kind.len()) || !self.kind.bytes().all(allowed) {
            return Err(BadAlert::Type(self.kind.len()));
        }
        let size = serde_json::to_vec(&self.data).map_or(usize::MAX, |json| json.len());
        if size > MOST_DATA {
            return Err(BadAlert::Data(size));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use garenne::{Worker, WorkerConfig};
    use garenne::{
        handler::{ContentType, Payload},
        testing::{TestWorker, Verdict},
    };

    async fn verdict(body: &str) -> String {
        let builder = Worker::builder(WorkerConfig::default());
        let worker = TestWorker::new(task::register(builder, AlertSettings::default())).unwrap();
        match worker.run("alert.notify", body).await {
            Verdict::Dead(reason, error) => format!("{reason}: {error}"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_bad_alert_is_refused_by_name() {
        let both = verdict(r#"{"webhook":"a","url":"http://b/"}"#).await;
        assert_eq!(both, "invalid-payload: webhook and url are both given, keep one");
        assert_eq!(
            verdict("{}").await,
            "rejected: no webhook \"default\": alert.webhooks.default.url is not set"
        );
        let private = verdict(r#"{"url":"http://169.254.169.254/latest/meta-data/"}"#).await;
        assert_eq!(
            private,
            "rejected: 169.254.169.254 is 169.254.169.254, not a public address; \
             alert.allow_networks names the others that are allowed"
        );
        let typed = verdict(r#"{"type":"a b"}"#).await;
        assert_eq!(typed, "invalid-payload: type has 3 bytes; 1 to 128 of a-z A-Z 0-9 . _ - are allowed");
        let large = verdict(&format!(r#"{{"data":{{"x":"{}"}}}}"#, "x".repeat(MOST_DATA))).await;
        assert_eq!(large, "invalid-payload: data has 16392 bytes, 16384 are allowed");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Any bytes, and JSON that is nearly an alert: an alert with a destination, or a named refusal.
        #[test]
        fn whatever_comes_is_an_alert_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            url in "(http|https|ftp|file|)(:|://)[a-z0-9.:@\\[\\]/%-]{0,30}",
            kind in "\\PC{0,200}",
            time in prop_oneof![any::<f64>().prop_map(Value::from), any::<i64>().prop_map(Value::from), ".{0,30}".prop_map(Value::from)],
            depth in 0_usize..200,
        ) {
            let nested = "[".repeat(depth) + &"]".repeat(depth);
            let near = format!(r#"{{"url":{},"type":{},"time":{time},"data":{{"x":{}}}}}"#, Value::from(url.as_str()), Value::from(kind), if depth == 0 { "1" } else { &nested });
            static COURIER: LazyLock<courier::Courier> =
                LazyLock::new(|| courier::Courier::new(AlertSettings::default()));
            for body in [bytes.as_slice(), near.as_bytes()] {
                if let Ok(alert) = <Alert as Payload>::read(ContentType::Json, body)
                    && alert.check().is_ok()
                {
                    let _ = COURIER.destination(alert.webhook.as_deref(), alert.url.as_deref());
                }
            }
        }
    }
}
