//! Dead letters for messages that no reading comes out of.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use garenne_amqp::{Message, Target};
use garenne_map::Source;
use garenne_protocol::{
    task::{ContentType, Copied, DeadReason, Kind, NewTask, TaskId, header},
    topology::Names,
};
use serde::{Deserialize, Serialize};

/// The kind of dead letters with the payload of an MQTT message. No worker has a handler for it.
const UNMAPPED_KIND: &str = "mqtt.message";

/// A message that no reading comes out of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) id: TaskId,
    pub(crate) reason: DeadReason,
    pub(crate) error: String,
    pub(crate) topic: String,
    pub(crate) content_type: Option<String>,
    pub(crate) payload: Bytes,
    pub(crate) received: SystemTime,
}

/// The body of the task that stands for a letter.
#[derive(Serialize, Deserialize)]
struct Body {
    reason: String,
    error: String,
    topic: String,
    content_type: Option<String>,
    received_ms: u64,
    bridge: String,
    /// In Base64.
    payload: String,
}

impl Letter {
    /// A task that stands for the letter on its way to the exchange of dead letters, and in the spool. `bridge` is the
    /// name of this process.
    pub(crate) fn to_task(&self, bridge: &str) -> NewTask {
        let received = self.received.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let body = Body {
            reason: self.reason.to_string(),
            error: self.error.clone(),
            topic: self.topic.clone(),
            content_type: self.content_type.clone(),
            received_ms: u64::try_from(received).unwrap_or(u64::MAX),
            bridge: bridge.to_owned(),
            payload: BASE64_STANDARD.encode(&self.payload),
        };
        let kind = Kind::parse(UNMAPPED_KIND).expect("a constant");
        let body = serde_json::to_vec(&body).expect("texts and numbers are plain JSON");
        NewTask { id: self.id.clone(), ..NewTask::new(kind, ContentType::Json, body) }
    }

    /// The letter that the task stands for, and the name of its bridge. `None` for any other task.
    fn of_task(task: &NewTask) -> Option<(Self, String)> {
        if task.kind.as_str() != UNMAPPED_KIND {
            return None;
        }
        let body: Body = serde_json::from_slice(&task.body).ok()?;
        let reason = body.reason.parse().ok();
        let letter = Self {
            id: task.id.clone(),
            reason: reason.filter(|it| matches!(it, DeadReason::Unmapped | DeadReason::TooLarge))?,
            error: body.error,
            topic: body.topic,
            content_type: body.content_type,
            payload: BASE64_STANDARD.decode(body.payload).ok()?.into(),
            received: UNIX_EPOCH.checked_add(Duration::from_millis(body.received_ms))?,
        };
        Some((letter, body.bridge))
    }

    /// The message for the exchange of dead letters. `bridge` is the name of the bridge that received it.
    fn message(&self, names: &Names, bridge: &str) -> Message {
        let content_type = self.content_type.as_deref().unwrap_or("application/octet-stream");
        let source = Source::Topic(&self.topic).to_label();
        let copied = Copied::foreign(&self.id, UNMAPPED_KIND, content_type, &source)
            .dead(self.reason, &self.error, bridge, "", self.received)
            .without(header::LANE);
        Message {
            target: Target::exchange(names.dead(), UNMAPPED_KIND.to_owned()),
            properties: copied.into_properties(),
            body: self.payload.clone(),
        }
    }
}

/// The message of a task that stands for a dead letter; `None` for any other task.
pub fn letter_of(task: &NewTask, names: &Names) -> Option<Message> {
    Letter::of_task(task).map(|(letter, bridge)| letter.message(names, &bridge))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter() -> Letter {
        Letter {
            id: TaskId::parse("l1").unwrap(),
            reason: DeadReason::Unmapped,
            error: "no rule matches".to_owned(),
            topic: "plant/\"boiler\"".to_owned(),
            content_type: Some("text/plain".to_owned()),
            payload: Bytes::from_static(b"\xff\n71.5"),
            received: UNIX_EPOCH + Duration::from_millis(1_790_000_000_123),
        }
    }

    #[test]
    fn a_task_stands_for_the_whole_letter() {
        let task = letter().to_task("bridge");
        assert_eq!(Letter::of_task(&task), Some((letter(), "bridge".to_owned())));
    }

    #[test]
    fn a_letter_keeps_its_source_however_long_the_topic_is() {
        for (length, shown) in [(1_024, ""), (1_025, "… (1025 bytes)"), (65_535, "… (65535 bytes)")] {
            let letter = Letter { topic: "t".repeat(length), ..letter() };
            let (letter, bridge) = Letter::of_task(&letter.to_task("bridge")).unwrap();
            assert_eq!(letter.topic.len(), length, "the spool has the whole topic");
            let message = letter.message(&Names::new("garenne"), &bridge);
            let source = header::get(message.properties.headers(), header::SOURCE).and_then(header::text);
            assert_eq!(source, Some(format!("topic:{}{shown}", "t".repeat(1_024))));
            assert!(header::get(message.properties.headers(), header::DROPPED).is_none());
        }
    }

    #[test]
    fn a_task_of_a_sender_is_no_letter() {
        let kind = Kind::parse(UNMAPPED_KIND).unwrap();
        let task = |body: &[u8]| NewTask::new(kind.clone(), ContentType::Json, body.to_vec());
        assert_eq!(Letter::of_task(&task(b"{}")), None);
        let forged = Letter { reason: DeadReason::Poison, ..letter() }.to_task("bridge");
        assert_eq!(Letter::of_task(&forged), None, "a reason that no bridge gives");
        let other = Kind::parse("reading.process").unwrap();
        assert_eq!(Letter::of_task(&NewTask { kind: other, ..letter().to_task("bridge") }), None);
    }
}
