//! Dead letters for messages that no reading comes out of.

use std::time::SystemTime;

use bytes::Bytes;
use garenne_amqp::{Message, Target};
use garenne_map::Source;
use garenne_protocol::{
    task::{Copied, DeadReason, TaskId, header},
    topology::Names,
};

/// The kind of dead letters with the payload of an MQTT message. No worker has a handler for it.
pub const UNMAPPED_KIND: &str = "mqtt.message";

/// A message that no reading comes out of.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) id: TaskId,
    pub(crate) reason: DeadReason,
    pub(crate) error: String,
    pub(crate) topic: String,
    pub(crate) content_type: Option<String>,
    pub(crate) payload: Bytes,
    pub(crate) received: SystemTime,
}

impl Letter {
    /// The message for the exchange of dead letters. `bridge` is the name of this process.
    pub(crate) fn message(&self, names: &Names, bridge: &str) -> Message {
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
