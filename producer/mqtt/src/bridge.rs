//! Receives messages and acknowledges them after they are stored.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesOrdered};
use garenne_common::{backoff::Backoff, config::SecretUrl};
use garenne_protocol::task::ReadingTasks;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::{Arrival, ConnectError, Connection, Lost},
    converter::{Content, Converter, too_large},
    endpoint::Endpoint,
    frames::TooLarge,
    instruments::{Instruments, Outcome},
    packet::{Hello, Incoming, Message},
    settings::MqttSettings,
    store::Store,
};

/// Most bytes of payloads that are received and not stored yet.
const MAX_BYTES: usize = 64 << 20;
/// A connection that lasted as long ends the growth of the pauses. Two bridges with one client id close each other's
/// connections at once.
const STABLE: Duration = Duration::from_secs(10);

/// A message that is being stored.
struct Stored {
    /// The number of the connection that it came on.
    connection_number: u64,
    packet_id: Option<u16>,
    bytes: usize,
}

/// A message that is not acknowledged yet, and its content.
struct Unacknowledged {
    message: Message,
    content: Content,
}

/// Moves messages from the MQTT broker to the AMQP broker.
pub(crate) struct Bridge {
    url: SecretUrl,
    settings: MqttSettings,
    client_id: String,
    converter: Converter,
    store: Arc<Store>,
    instruments: Instruments,
    /// An acknowledgement is sent only on the connection of its message.
    connection_number: u64,
    /// In the order of arrival. Messages of earlier connections are stored to the end.
    storing: FuturesOrdered<BoxFuture<'static, Stored>>,
    /// Bytes of the payloads in `storing`.
    bytes: usize,
    /// By packet id, those of the session. If the connection is lost, the broker sends them again, and the same content
    /// is stored under the same ids.
    unacknowledged: HashMap<u16, Unacknowledged>,
    /// A SUBSCRIBE of this process was answered.
    subscribed: bool,
}

impl Bridge {
    pub(crate) fn new(
        url: SecretUrl,
        settings: MqttSettings,
        client_id: String,
        converter: Converter,
        store: Arc<Store>,
        instruments: Instruments,
    ) -> Self {
        Self {
            url,
            settings,
            client_id,
            converter,
            store,
            instruments,
            connection_number: 0,
            storing: FuturesOrdered::new(),
            bytes: 0,
            unacknowledged: HashMap::new(),
            subscribed: false,
        }
    }

    /// Runs until `stop` is cancelled, then stores what was received. Fails if the first connection does not succeed
    /// within `patience` or is refused.
    pub(crate) async fn run(
        &mut self,
        stop: &CancellationToken,
        patience: Duration,
    ) -> Result<(), ConnectError> {
        let deadline = Instant::now() + patience;
        let mut backoff = Backoff::default();
        while !stop.is_cancelled() {
            let opened = tokio::select! {
                opened = self.open() => opened,
                () = stop.cancelled() => break,
            };
            let error = match opened {
                Ok(connection) => {
                    let began = Instant::now();
                    let ended = self.serve(connection, stop).await;
                    self.instruments.connected.set(0);
                    match ended {
                        Ok(()) => break,
                        Err(Ended::Refused(error)) => error.to_string(),
                        Err(Ended::Lost(lost)) => {
                            if began.elapsed() >= STABLE {
                                backoff.reset();
                            }
                            format!("connection to the MQTT broker lost: {lost}")
                        }
                        // Without a subscription nothing comes. Later, another attempt may succeed.
                        Err(Ended::FirstRefused(error)) => return Err(error),
                    }
                }
                Err(error) => {
                    // A URL that came from a file is read again: its password may be about to change.
                    let is_final =
                        !matches!(error, ConnectError::Unavailable { .. }) && self.url.file().is_none();
                    if !self.subscribed && (is_final || Instant::now() >= deadline) {
                        return Err(error);
                    }
                    error.to_string()
                }
            };
            let wait = backoff.next_wait();
            tracing::warn!(%error, ?wait, "not connected to the MQTT broker, trying again");
            self.store_while(tokio::time::sleep(wait), stop).await;
        }
        Ok(())
    }

    /// Connects, and subscribes if the session may lack the subscription.
    async fn open(&mut self) -> Result<Connection, ConnectError> {
        let unavailable = |address: &str, problem: String| ConnectError::Unavailable {
            address: address.to_owned(),
            problem,
        };
        let url = self.url.read_again().await;
        let url = url.map_err(|problem| unavailable(self.url.masked(), format!("mqtt.url: {problem}")))?;
        let endpoint = Endpoint::parse(&url).map_err(|problem| unavailable(url.masked(), problem))?;
        let MqttSettings { version, keep_alive, session_expiry, in_flight, .. } = self.settings;
        let hello = Hello {
            clean: false,
            client_id: self.client_id.clone(),
            login: endpoint.login.clone(),
            keep_alive,
            session_expiry,
            in_flight,
            max_packet: self.settings.max_packet.bytes(),
        };
        let (mut connection, welcome) =
            Connection::open(&endpoint, &self.settings.tls, version, &hello).await?;
        self.instruments.connections.inc();
        let shared = self.settings.subscribe.iter().find(|filter| filter.starts_with("$share/"));
        if let Some(filter) = shared.filter(|_| !welcome.shared_subscriptions) {
            let (address, filter) = (endpoint.address(), filter.clone());
            let reason = "it has no shared subscriptions".to_owned();
            return Err(ConnectError::Subscription { address, filter, reason });
        }
        self.connection_number += 1;
        if !welcome.session_present {
            // Packet ids of a new session begin again.
            self.unacknowledged.clear();
        }
        let (address, session_present) = (endpoint.address(), welcome.session_present);
        tracing::info!(%address, client_id = %self.client_id, session_present, "connected to the MQTT broker");
        if welcome.session_present && self.subscribed {
            // With MQTT 3.1.1 another SUBSCRIBE would send all retained messages again.
            self.instruments.connected.set(1);
        } else {
            let subscribe = version.subscribe(&self.settings.subscribe, self.settings.retained);
            let subscribe = subscribe.map_err(|error| unavailable(&address, error.to_string()))?;
            connection.send(&subscribe);
        }
        Ok(connection)
    }

    /// Serves a connection until `stop` is cancelled.
    async fn serve(&mut self, mut connection: Connection, stop: &CancellationToken) -> Result<(), Ended> {
        loop {
            let read = self.storing.len() < usize::from(self.settings.in_flight) && self.bytes < MAX_BYTES;
            tokio::select! {
                arrival = connection.next(read) => match arrival? {
                    Arrival::Packet(Incoming::Message(message)) => self.receive(message),
                    Arrival::Packet(Incoming::Subscribed(answers)) => self.handle_suback(&answers)?,
                    Arrival::Packet(other) => tracing::debug!(?other, "unexpected packet"),
                    Arrival::TooLarge(message) => self.receive_too_large(&message),
                },
                Some(stored) = self.storing.next() => self.acknowledge_ready(&stored, &mut connection),
                () = stop.cancelled() => break,
            }
        }
        self.drain(connection).await;
        Ok(())
    }

    fn handle_suback(&mut self, answers: &[Option<String>]) -> Result<(), Ended> {
        for (filter, answer) in self.settings.subscribe.iter().zip(answers) {
            if let Some(reason) = answer {
                let address = self.url.masked().to_owned();
                let (filter, reason) = (filter.clone(), reason.clone());
                let error = ConnectError::Subscription { address, filter, reason };
                return Err(if self.subscribed { Ended::Refused(error) } else { Ended::FirstRefused(error) });
            }
        }
        tracing::info!(filters = ?self.settings.subscribe, "subscribed to the MQTT broker");
        self.subscribed = true;
        self.instruments.connected.set(1);
        Ok(())
    }

    fn receive(&mut self, message: Message) {
        if message.retain && !self.settings.retained {
            return self.skip_retained(message.packet_id);
        }
        let known = message.packet_id.and_then(|id| self.unacknowledged.get(&id)).filter(|known| {
            // The broker keeps the packet id of a message until it is acknowledged.
            message.dup && known.message.topic == message.topic && known.message.payload == message.payload
        });
        let (content, is_known) = match known {
            Some(known) => (known.content.clone(), true),
            None => {
                let (content, left_out) = self.converter.convert(&message);
                self.instruments.left_out(&left_out);
                (content, false)
            }
        };
        let outcome = match &content {
            Content::Letter(_) => Outcome::Unmapped,
            Content::Tasks(readings) if readings.tasks.is_empty() => Outcome::Skipped,
            Content::Tasks(readings) => {
                self.instruments.readings.inc_by(readings.tasks.len() as u64);
                Outcome::Mapped
            }
            Content::Partial(readings, _) => {
                self.instruments.readings.inc_by(readings.tasks.len() as u64);
                Outcome::Partial
            }
        };
        self.instruments.received(outcome);
        if message.dup {
            let repeatable = match &content {
                Content::Tasks(readings) | Content::Partial(readings, _) => readings.repeatable,
                Content::Letter(_) => false,
            };
            self.instruments.redelivered(is_known || repeatable);
        }
        let (packet_id, bytes) = (message.packet_id, message.payload.len());
        if let Some(id) = packet_id {
            self.unacknowledged.insert(id, Unacknowledged { message, content: content.clone() });
        }
        self.begin_storing(packet_id, bytes, content);
    }

    fn receive_too_large(&mut self, message: &TooLarge) {
        if message.retain && !self.settings.retained {
            return self.skip_retained(message.packet_id);
        }
        let (topic, bytes) = (&message.topic, message.bytes);
        tracing::error!(%topic, bytes, "a message is larger than mqtt.max_packet; its payload is lost");
        self.instruments.received(Outcome::TooLarge);
        if message.dup {
            self.instruments.redelivered(false);
        }
        let letter = too_large(message, self.settings.max_packet.bytes());
        self.begin_storing(message.packet_id, 0, Content::Letter(letter));
    }

    /// Acknowledges a retained message in its turn, without storing anything.
    fn skip_retained(&mut self, packet_id: Option<u16>) {
        self.instruments.received(Outcome::Retained);
        let nothing = ReadingTasks { tasks: Vec::new(), repeatable: true };
        self.begin_storing(packet_id, 0, Content::Tasks(Arc::new(nothing)));
    }

    /// Begins to store the content of a message.
    fn begin_storing(&mut self, packet_id: Option<u16>, bytes: usize, content: Content) {
        let stored = Stored { connection_number: self.connection_number, packet_id, bytes };
        let store = Arc::clone(&self.store);
        self.storing.push_back(async move { store.store(content).map(|()| stored).await }.boxed());
        self.bytes += bytes;
        self.show_in_flight();
    }

    /// Acknowledges `first` and the messages after it that are stored by now, so that their PUBACKs are written at once:
    /// group commit has one confirm for many messages.
    fn acknowledge_ready(&mut self, first: &Stored, connection: &mut Connection) {
        self.acknowledge(first, Some(connection));
        while let Some(Some(next)) = self.storing.next().now_or_never() {
            self.acknowledge(&next, Some(connection));
        }
    }

    /// Acknowledges a message that is stored, if its connection is still open.
    fn acknowledge(&mut self, stored: &Stored, connection: Option<&mut Connection>) {
        self.bytes -= stored.bytes;
        self.show_in_flight();
        if let (Some(id), Some(connection)) = (stored.packet_id, connection)
            && stored.connection_number == self.connection_number
        {
            self.unacknowledged.remove(&id);
            connection.ack(id);
        }
    }

    fn show_in_flight(&self) {
        self.instruments.in_flight.set(i64::try_from(self.storing.len()).unwrap_or(i64::MAX));
    }

    /// Stores what was received while there is no connection, until `wait` resolves or `stop` is cancelled.
    async fn store_while(&mut self, wait: impl Future<Output = ()>, stop: &CancellationToken) {
        tokio::pin!(wait);
        loop {
            tokio::select! {
                () = &mut wait => return,
                () = stop.cancelled() => return,
                Some(stored) = self.storing.next() => self.acknowledge(&stored, None),
            }
        }
    }

    /// Waits until what was received is stored, acknowledges it, and closes the connection.
    async fn drain(&mut self, mut connection: Connection) {
        self.instruments.connected.set(0);
        let deadline = Instant::now() + self.settings.drain_timeout;
        let drained = timeout_at(deadline, async {
            while !self.storing.is_empty() {
                tokio::select! {
                    lost = connection.next(false) => return lost.map(drop),
                    Some(stored) = self.storing.next() => self.acknowledge_ready(&stored, &mut connection),
                }
            }
            Ok(())
        });
        match drained.await {
            Ok(Ok(())) => {}
            Ok(Err(lost)) => tracing::warn!(%lost, "connection to the MQTT broker lost while stopping"),
            Err(_) => {
                let messages = self.storing.len();
                tracing::warn!(
                    messages,
                    "messages not confirmed within mqtt.drain_timeout; the MQTT broker sends them again"
                );
            }
        }
        if let Err(error) = connection.close().await {
            tracing::warn!(%error, "cannot close the connection to the MQTT broker; messages may come again");
        }
    }
}

/// Why a connection is served no longer.
enum Ended {
    Lost(Lost),
    /// A subscription was refused.
    Refused(ConnectError),
    /// The first subscription of this process was refused.
    FirstRefused(ConnectError),
}

impl From<Lost> for Ended {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

#[cfg(test)]
mod tests;
