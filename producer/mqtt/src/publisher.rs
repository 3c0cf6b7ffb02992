//! Publishes messages with QoS 1, for tools that stand for devices.

use std::{collections::HashMap, num::NonZeroU16, time::Duration};

use bytes::Bytes;
use garenne_common::config::{Certificates, SecretUrl};
use garenne_protocol::task::TaskId;
use tokio::sync::Mutex;

use crate::{
    connection::{Arrival, ConnectError, Connection},
    endpoint::Endpoint,
    packet::{Hello, Incoming},
    version::Version,
};

/// Most messages that are not acknowledged yet. It is the smallest receive maximum that brokers have by default.
const WINDOW: usize = 20;
/// Largest packet that the broker may send.
const MAX_PACKET: usize = 64 * 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Publishes to one MQTT broker. It connects with the first messages, and again after an error.
pub struct MqttPublisher {
    endpoint: Endpoint,
    tls: Certificates,
    version: Version,
    connection: Mutex<Option<Open>>,
}

/// A connection and its last packet id.
struct Open {
    connection: Connection,
    packet_id: NonZeroU16,
}

/// Why messages were not all accepted.
#[derive(Debug, thiserror::Error)]
pub enum MqttPublishError {
    /// The broker is away. It may have some of the messages.
    #[error("{0}")]
    Unavailable(String),
    /// The broker denies access.
    #[error("{0}")]
    Denied(String),
    /// The broker refused a message.
    #[error("message {index}: {reason}")]
    Message {
        /// The index of the message.
        index: usize,
        /// The reason.
        reason: String,
    },
}

impl MqttPublisher {
    /// For the broker at `mqtt://` or `mqtts://`. No connection is opened yet.
    pub fn new(url: &SecretUrl, tls: Certificates, version: Version) -> Result<Self, String> {
        Ok(Self { endpoint: Endpoint::parse(url)?, tls, version, connection: Mutex::new(None) })
    }

    /// Publishes messages, topics with payloads, and waits until the broker has acknowledged all of them.
    pub async fn publish(&self, messages: &[(String, Bytes)]) -> Result<(), MqttPublishError> {
        let mut slot = self.connection.lock().await;
        // If this call is cancelled, the connection ends, because nothing knows what is unacknowledged on it.
        let mut open = match slot.take() {
            Some(open) => open,
            None => self.open().await?,
        };
        self.exchange(&mut open, messages).await?;
        *slot = Some(open);
        Ok(())
    }

    async fn open(&self) -> Result<Open, MqttPublishError> {
        let hello = Hello {
            clean: true,
            client_id: format!("garenne-{}", TaskId::random()),
            login: self.endpoint.login.clone(),
            keep_alive: KEEP_ALIVE,
            session_expiry: Duration::ZERO,
            in_flight: u16::MAX,
            max_packet: MAX_PACKET,
        };
        let opened = Connection::open(&self.endpoint, &self.tls, self.version, &hello).await;
        let (connection, _) = opened.map_err(|error| match error {
            ConnectError::Refused { denied: true, .. } => MqttPublishError::Denied(error.to_string()),
            _ => MqttPublishError::Unavailable(error.to_string()),
        })?;
        Ok(Open { connection, packet_id: NonZeroU16::MAX })
    }

    async fn exchange(&self, open: &mut Open, messages: &[(String, Bytes)]) -> Result<(), MqttPublishError> {
        let refused = |index, reason| MqttPublishError::Message { index, reason };
        let mut waiting = HashMap::new();
        let mut sent = 0;
        while sent < messages.len() || !waiting.is_empty() {
            while waiting.len() < WINDOW
                && let Some((topic, payload)) = messages.get(sent)
            {
                open.packet_id = open.packet_id.checked_add(1).unwrap_or(NonZeroU16::MIN);
                let packet = self.version.publish(topic, payload, open.packet_id.get());
                open.connection.send(&packet.map_err(|error| refused(sent, error.to_string()))?);
                waiting.insert(open.packet_id.get(), sent);
                sent += 1;
            }
            let arrival = open.connection.next(true).await;
            let arrival = arrival.map_err(|lost| {
                MqttPublishError::Unavailable(format!("{}: {lost}", self.endpoint.address()))
            })?;
            if let Arrival::Packet(Incoming::Published { packet_id, refused: problem }) = arrival
                && let Some(index) = waiting.remove(&packet_id)
                && let Some(reason) = problem
            {
                return Err(refused(index, reason));
            }
        }
        Ok(())
    }
}
