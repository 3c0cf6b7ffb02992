//! The packets of both versions of the protocol: those that the bridge sends, and those that it receives.
//!
//! The bytes are read and written by rumqttc.

mod v3;
mod v5;

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::version::Version;

/// A packet with a reason of its own in each version is written by hand where both versions have the same bytes.
const PUBACK: u8 = 0x40;
const PINGREQ: [u8; 2] = [0xc0, 0];
const DISCONNECT: [u8; 2] = [0xe0, 0];

/// The packet id of SUBSCRIBE. The client has no other packet with an id of its own.
const SUBSCRIBE_ID: u16 = 1;

/// The most bytes of a topic.
pub(crate) const MAX_TOPIC: usize = u16::MAX as usize;

/// The broker sent bytes that are not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the MQTT broker broke the protocol: {0}")]
pub(crate) struct ProtocolError(String);

impl ProtocolError {
    pub(crate) fn new(problem: impl ToString) -> Self {
        Self(problem.to_string())
    }
}

/// The content of CONNECT.
#[derive(Clone)]
pub(crate) struct Hello {
    /// The session ends with the connection.
    pub(crate) clean: bool,
    pub(crate) client_id: String,
    pub(crate) login: Option<(String, String)>,
    pub(crate) keep_alive: Duration,
    pub(crate) session_expiry: Duration,
    pub(crate) in_flight: u16,
    pub(crate) max_packet: usize,
}

/// A packet of the broker.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Incoming {
    /// The answer to CONNECT.
    Connected(Welcome),
    /// The broker refused the connection.
    Refused {
        reason: String,
        /// Whether the login is the reason.
        denied: bool,
    },
    Message(Message),
    /// The answer to SUBSCRIBE, with the reason of each filter that was refused.
    Subscribed(Vec<Option<String>>),
    /// PUBACK: the broker has a message, or refused it.
    Published {
        packet_id: u16,
        /// Why it was refused.
        refused: Option<String>,
    },
    /// The broker closes the connection.
    Closing(String),
    /// PINGRESP.
    Pong,
}

/// The answer to CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Whether the broker has a session of this client.
    pub(crate) session_present: bool,
    /// The interval that the broker asks for.
    pub(crate) keep_alive: Option<Duration>,
    /// Whether shared subscriptions are possible, as far as the broker says.
    pub(crate) shared_subscriptions: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    /// `None` with QoS 0, which needs no PUBACK.
    pub(crate) packet_id: Option<u16>,
    /// The broker may have sent it before.
    pub(crate) dup: bool,
    /// The broker kept it for new subscriptions.
    pub(crate) retain: bool,
    /// With MQTT 5, as the sender says.
    pub(crate) content_type: Option<String>,
}

impl Version {
    pub(crate) fn connect(self, hello: &Hello) -> Result<BytesMut, ProtocolError> {
        match self {
            Self::V3 => v3::connect(hello),
            Self::V5 => v5::connect(hello),
        }
    }

    /// SUBSCRIBE with QoS 1.
    pub(crate) fn subscribe(self, filters: &[String], retained: bool) -> Result<BytesMut, ProtocolError> {
        match self {
            Self::V3 => v3::subscribe(filters),
            Self::V5 => v5::subscribe(filters, retained),
        }
    }

    /// PUBLISH with QoS 1.
    pub(crate) fn publish(
        self,
        topic: &str,
        payload: &Bytes,
        packet_id: u16,
    ) -> Result<BytesMut, ProtocolError> {
        if topic.len() > MAX_TOPIC {
            return Err(ProtocolError::new(format!("the topic has more than {MAX_TOPIC} bytes")));
        }
        match self {
            Self::V3 => v3::publish(topic, payload, packet_id),
            Self::V5 => v5::publish(topic, payload, packet_id),
        }
    }

    /// Reads a whole packet. Refuses one that no broker sends to such a client.
    pub(crate) fn read(self, packet: BytesMut) -> Result<Incoming, ProtocolError> {
        match self {
            Self::V3 => v3::read(packet),
            Self::V5 => v5::read(packet),
        }
    }
}

/// Appends PUBACK: the message is stored.
pub(crate) fn write_puback(packet_id: u16, out: &mut BytesMut) {
    let [high, low] = packet_id.to_be_bytes();
    out.extend_from_slice(&[PUBACK, 2, high, low]);
}

/// Appends PINGREQ.
pub(crate) fn write_ping(out: &mut BytesMut) {
    out.extend_from_slice(&PINGREQ);
}

/// Appends DISCONNECT. The session stays.
pub(crate) fn write_disconnect(out: &mut BytesMut) {
    out.extend_from_slice(&DISCONNECT);
}

#[cfg(test)]
mod tests;
