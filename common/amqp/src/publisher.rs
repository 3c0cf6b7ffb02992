//! Confirmed, mandatory publishing with many messages in flight.
//!
//! Members of a deadpool are connections with one confirm channel each. A member is held only while
//! frames are written, those of many messages together; confirms are awaited outside, so a thousand messages
//! can be in flight on one member. A member whose channel died is dropped at its next turn and a new one is
//! made.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool::managed::{Object, Pool, Timeouts};
use garenne_common::telemetry::metrics::{ConnectionMetrics, PublishResult};
use lapin::{Channel, Connection, options::BasicPublishOptions};
use tokio::{
    sync::{
        Mutex, OwnedSemaphorePermit, Semaphore,
        oneshot::{self, error::RecvError},
    },
    time::timeout,
};

use super::{connect::Broker, wire::Message};

mod address;
mod confirm_tracker;
mod error;
mod member;
mod pending_publish;
mod publish_queue;
mod writing;

use address::Address;
pub use error::PublishError;
use member::{Members, header_limit};
use pending_publish::{Answer, Claim, PendingPublish};
use publish_queue::PublishQueue;
use writing::fits;

/// Sizes and patience of a [`Publisher`].
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// Connections at most, 1 or more.
    pub connections: usize,
    /// Unconfirmed messages at most, over all connections.
    pub in_flight: usize,
    /// How long to wait for a free member or a free place in flight.
    pub acquire_timeout: Duration,
    /// How long to wait for a confirm, from when the message was handed over; after it the message may or may
    /// not be stored. One that waited for a connection longer than this has no more time once it is under way.
    pub confirm_timeout: Duration,
    /// Whether a confirm is waited for as long as the connection lives, however long that is: the broker may have
    /// the message already, and a caller that sends it again stores it twice. Heartbeats end the connection to a
    /// broker that hangs.
    pub while_connected: bool,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            connections: 1,
            in_flight: 1000,
            acquire_timeout: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(10),
            while_connected: false,
        }
    }
}

/// Publishes messages; cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    pool: Pool<Members>,
    queue: Arc<PublishQueue>,
    in_flight: Arc<Semaphore>,
    config: PublisherConfig,
    metrics: Option<ConnectionMetrics>,
    blocked: Arc<AtomicBool>,
    side: Arc<Mutex<Option<Side>>>,
}

/// The channel of announcements, and the connection that it is on.
struct Side {
    connection: Weak<Connection>,
    channel: Channel,
    header_limit: usize,
}

/// A message on its way.
#[must_use = "a message is safe only once its confirm arrived"]
pub struct Pending {
    answer: oneshot::Receiver<Answer>,
    claim: Claim,
    /// How long to wait for a connection.
    connection: Duration,
    /// How long to wait for a confirm; without a limit, as long as the connection lives.
    confirm: Option<Duration>,
}

impl Publisher {
    /// A publisher that connects at its first message.
    pub fn new(broker: Broker, config: PublisherConfig) -> Self {
        Self::build(broker, config, None)
    }

    /// The same, counting every message and showing its connection in `metrics`.
    pub fn observed(broker: Broker, config: PublisherConfig, metrics: ConnectionMetrics) -> Self {
        Self::build(broker, config, Some(metrics))
    }

    fn build(broker: Broker, config: PublisherConfig, metrics: Option<ConnectionMetrics>) -> Self {
        let blocked = Arc::new(AtomicBool::new(false));
        let members = Members { broker, metrics: metrics.clone(), blocked: Arc::clone(&blocked) };
        let pool = Pool::builder(members)
            .max_size(config.connections.max(1))
            .runtime(deadpool::Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(config.acquire_timeout),
                create: Some(config.acquire_timeout),
                recycle: None,
            })
            .build()
            .expect("a runtime is given, which is all that build asks for");
        let in_flight = Arc::new(Semaphore::new(config.in_flight.max(1)));
        let queue = PublishQueue::new(pool.clone(), config.connections.max(1));
        Self { pool, queue, in_flight, config, metrics, blocked, side: Arc::default() }
    }

    /// Connects now, so that a wrong password is known before work starts.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub async fn connect(&self) -> Result<(), PublishError> {
        self.member().await.map(drop)
    }

    /// Sends a message and waits for the broker to confirm that a queue has it.
    ///
    /// # Errors
    /// [`PublishError`]; only [`PublishError::in_doubt`] ones may have been stored.
    pub async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let began = Instant::now();
        let outcome = match self.send(message).await {
            Ok(pending) => pending.confirmed().await,
            Err(error) => Err(error),
        };
        if let Some(metrics) = &self.metrics {
            let result =
                outcome.as_ref().map_or_else(PublishError::counted_as, |()| PublishResult::Confirmed);
            metrics.published(result, began.elapsed());
        }
        outcome
    }

    /// Whether the broker blocks publishers right now.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Hands a message to a writer; its confirm can be awaited later. Not counted in the metrics.
    ///
    /// # Errors
    /// [`PublishError::Blocked`], [`PublishError::Busy`] where too much is in flight, and
    /// [`PublishError::TooLarge`] where a name is too long. What else there is, [`Pending::confirmed`] says.
    pub async fn send(&self, message: Message) -> Result<Pending, PublishError> {
        if self.is_blocked() {
            return Err(PublishError::Blocked);
        }
        let (publish, claim, answer) = PendingPublish::new(message, self.permit().await?)?;
        self.queue.push(publish);
        let PublisherConfig { acquire_timeout: connection, confirm_timeout, while_connected, .. } =
            self.config;
        let confirm = (!while_connected).then_some(confirm_timeout);
        Ok(Pending { answer, claim, connection, confirm })
    }

    /// Sends a message that nobody waits for: unconfirmed, not counted, whether a queue takes it or not, on
    /// a channel of its own. The broker's refusal closes that channel and nothing else.
    ///
    /// # Errors
    /// Without a connection, while publishers are blocked, or with [`PublishError::Unheard`] where the
    /// broker refused the announcement before.
    pub async fn announce(&self, message: Message) -> Result<(), PublishError> {
        if self.is_blocked() {
            return Err(PublishError::Blocked);
        }
        let Message { target, properties, body } = message;
        let address = Address::of(target)?;
        let mut side = self.side.lock().await;
        if let Some(used) = side.take_if(|side| !side.channel.status().connected())
            && used.connection.upgrade().is_some_and(|connection| connection.status().connected())
        {
            let exchange = address.exchange.as_str();
            let problem = format!("the broker refused a message to {exchange:?}: may this user write to it?");
            return Err(PublishError::Unheard(problem));
        }
        let lost = |error: lapin::Error| PublishError::lost(&error);
        let Side { channel, header_limit, .. } = match &*side {
            Some(side) => side,
            None => {
                let connection = Arc::clone(&self.member().await?.connection);
                let channel = connection.create_channel().await.map_err(lost)?;
                let header_limit = header_limit(&connection);
                side.insert(Side { connection: Arc::downgrade(&connection), channel, header_limit })
            }
        };
        fits(&properties, *header_limit)?;
        let Address { exchange, routing_key: key } = address;
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange, key, options, &body, properties).await.map(drop).map_err(lost)
    }

    /// Waits for what is in flight, at most a confirm's timeout, then closes every connection.
    pub async fn close(&self) {
        let all = self.config.in_flight.max(1).try_into().unwrap_or(u32::MAX);
        let _ = timeout(self.config.confirm_timeout, self.in_flight.acquire_many(all)).await;
        *self.side.lock().await = None;
        self.pool.close();
    }

    /// A permit for one message in flight.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, PublishError> {
        // There nearly always is one, and then no timer is needed.
        if let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() {
            return Ok(permit);
        }
        let waited = self.config.acquire_timeout;
        Box::pin(timeout(waited, Arc::clone(&self.in_flight).acquire_owned()))
            .await
            .map_err(|_| PublishError::Busy { what: "place in flight", waited })
            .map(|permit| permit.expect("the semaphore is never closed"))
    }

    async fn member(&self) -> Result<Object<Members>, PublishError> {
        self.pool.get().await.map_err(|error| PublishError::of_pool(error, Some(self.config.acquire_timeout)))
    }
}

impl Pending {
    /// Whether a writer has taken it up: from then on it may be stored, whatever happens.
    pub fn is_under_way(&self) -> bool {
        self.claim.is_taken()
    }

    /// Waits for the broker's word: for a connection and, once the message is under way, for its confirm.
    ///
    /// # Errors
    /// [`PublishError::Busy`] or [`PublishError::Connect`], and nothing was sent; [`PublishError::TooLarge`], and
    /// it never can be; or [`PublishError::Unroutable`], [`PublishError::Refused`], [`PublishError::InDoubt`] or
    /// [`PublishError::Denied`].
    pub async fn confirmed(mut self) -> Result<(), PublishError> {
        let early = self.confirm.map_or(self.connection, |confirm| self.connection.min(confirm));
        // One timer for both: nearly every confirm comes before either would ring.
        match timeout(early, &mut self.answer).await {
            Ok(answer) => told(answer),
            // Boxed, as what is rare: every message has such a future, which should be small.
            Err(_) => Box::pin(self.late(early)).await,
        }
    }

    /// Goes on waiting after so long.
    async fn late(mut self, waited: Duration) -> Result<(), PublishError> {
        let Self { connection, confirm, .. } = self;
        if !self.is_under_way() {
            match timeout(connection - waited, &mut self.answer).await {
                Ok(answer) => return told(answer),
                Err(_) if self.claim.take() => {
                    return Err(PublishError::Busy { what: "connection", waited: connection });
                }
                Err(_) => {}
            }
        }
        let Some(confirm) = confirm else { return told(self.answer.await) };
        match timeout(confirm - waited, &mut self.answer).await {
            Ok(answer) => told(answer),
            Err(_) => Err(PublishError::InDoubt(format!("no confirm within {confirm:?}"))),
        }
    }
}

fn told(answer: Result<Answer, RecvError>) -> Result<(), PublishError> {
    answer.unwrap_or_else(|_| Err(PublishError::InDoubt("the connection ended".into())))
}

#[cfg(test)]
mod tests;
