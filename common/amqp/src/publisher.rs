//! Confirmed, mandatory publishing with many messages in flight.
//!
//! A publisher has one connection with one confirm channel, the only one of a deadpool: the pool opens it when it
//! is first needed, bounds the wait for it, and replaces it when it is next taken and its channel has closed. It is
//! held only while the frames of a round of messages are written. Confirms are awaited without it, so that a
//! thousand messages can be in flight.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool::managed::Pool;
use garenne_common::connection::{ConnectionObserver, PublishResult};
use lapin::{Channel, Connection, options::BasicPublishOptions};
use tokio::{
    sync::{
        Mutex, OwnedSemaphorePermit, Semaphore,
        oneshot::{self, error::RecvError},
    },
    time::{Instant, timeout},
};

use super::{connect::Broker, declare::is_missing, wire::Message};

mod address;
mod confirm_tracker;
mod error;
mod pending_publish;
mod pooled_connection;
mod publish_queue;
mod requests;
mod route_health;
#[cfg(feature = "simulation")]
pub mod simulated;
mod writing;

use address::Address;
pub use error::PublishError;
use pending_publish::{Answer, Claim, PendingPublish};
use pooled_connection::{ConnectionOpener, header_limit};
use publish_queue::PublishQueue;
pub use requests::PendingReply;
use requests::Requests;
use route_health::RouteHealth;
use writing::fits;

/// Limits and timeouts of a [`Publisher`].
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// Most unconfirmed messages; 0 counts as 1.
    pub in_flight: usize,
    /// How long to wait for the connection, and for an in-flight permit.
    pub acquire_timeout: Duration,
    /// How long to wait for a confirm; after it the message is in doubt. Counts from [`Publisher::send`], the wait
    /// for the connection included: a message that waited longer than this is in doubt as soon as it is written.
    pub confirm_timeout: Duration,
    /// If true, a confirm is awaited as long as the connection lives, without `confirm_timeout`: a caller that
    /// gives up and sends the message again may store it twice. AMQP heartbeats end the connection to a broker
    /// that hangs.
    pub while_connected: bool,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
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
    outlet: Outlet,
    in_flight: Arc<Semaphore>,
    config: PublisherConfig,
    observer: Option<Arc<dyn ConnectionObserver>>,
    blocked: Arc<AtomicBool>,
    announcing: Arc<Mutex<Option<AnnounceChannel>>>,
    routes: Arc<RouteHealth>,
    /// Set if the publisher receives replies.
    requests: Option<Arc<Requests>>,
}

/// What takes the messages of a publisher.
#[derive(Clone)]
enum Outlet {
    Amqp(Arc<PublishQueue>),
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn simulated::PublishBroker>),
}

/// The channel of [`Publisher::announce`], and its connection.
struct AnnounceChannel {
    connection: Weak<Connection>,
    channel: Channel,
    header_limit: usize,
}

/// A message that was handed to a writer and is not confirmed yet.
#[must_use = "a message is safe only once its confirm arrived"]
pub struct Pending {
    answer: oneshot::Receiver<Answer>,
    claim: Claim,
    acquire_timeout: Duration,
    /// `None` waits as long as the connection lives.
    confirm_timeout: Option<Duration>,
}

impl Publisher {
    /// A publisher that connects at its first message.
    pub fn new(broker: Broker, config: PublisherConfig) -> Self {
        Self::build(broker, config, None, None)
    }

    /// As [`Publisher::new`], and tells `observer` of messages and of the connection's state.
    pub fn observed(
        broker: Broker,
        config: PublisherConfig,
        observer: impl ConnectionObserver + 'static,
    ) -> Self {
        Self::build(broker, config, Some(Arc::new(observer)), None)
    }

    fn build(
        broker: Broker,
        config: PublisherConfig,
        observer: Option<Arc<dyn ConnectionObserver>>,
        requests: Option<Arc<Requests>>,
    ) -> Self {
        let blocked = Arc::new(AtomicBool::new(false));
        let newest = Arc::default();
        let opener = ConnectionOpener {
            broker,
            observer: observer.clone(),
            blocked: Arc::clone(&blocked),
            newest,
            requests: requests.clone(),
        };
        let pool = Pool::builder(opener)
            .max_size(1)
            .runtime(deadpool::Runtime::Tokio1)
            .wait_timeout(Some(config.acquire_timeout))
            .create_timeout(Some(config.acquire_timeout))
            .build()
            .expect("the only requirement, a runtime for the timeouts, is set");
        let outlet = Outlet::Amqp(PublishQueue::new(pool));
        Self { requests, ..Self::with_outlet(outlet, config, observer, blocked) }
    }

    fn with_outlet(
        outlet: Outlet,
        config: PublisherConfig,
        observer: Option<Arc<dyn ConnectionObserver>>,
        blocked: Arc<AtomicBool>,
    ) -> Self {
        Self {
            outlet,
            in_flight: Arc::new(Semaphore::new(config.in_flight.max(1))),
            config,
            observer,
            blocked,
            announcing: Arc::default(),
            routes: Arc::default(),
            requests: None,
        }
    }

    /// Opens a connection now, so that a wrong password is reported before work starts.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub async fn connect(&self) -> Result<(), PublishError> {
        match &self.outlet {
            Outlet::Amqp(queue) => queue.connection().await.map(drop),
            #[cfg(feature = "simulation")]
            Outlet::Simulated(broker) => broker.connect().await,
        }
    }

    /// Publishes a message and waits for the broker to confirm that a queue has stored it.
    ///
    /// # Errors
    /// The message was not stored, unless [`PublishError::in_doubt`] is true: then it may have been.
    pub async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let began = Instant::now();
        let watched = self.routes.is_failing().then(|| message.target.exchange.clone());
        let outcome = self.offer(message).await;
        self.routes.note(&outcome, watched.as_deref());
        if let Some(observer) = &self.observer {
            let result =
                outcome.as_ref().map_or_else(PublishError::counted_as, |()| PublishResult::Confirmed);
            observer.published(result, began.elapsed());
        }
        outcome
    }

    /// As [`Publisher::publish`], for a message whose queue may not exist: that none takes it is an answer, and no
    /// [`route_problem`](Self::route_problem). Not counted in the metrics.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub async fn offer(&self, message: Message) -> Result<(), PublishError> {
        self.send(message).await?.confirmed().await
    }

    /// Why messages for an exchange reach no queue. Shown until one does, or none failed for half a minute.
    pub fn route_problem(&self) -> Option<String> {
        self.routes.problem()
    }

    /// The broker's last refusal, if the user lacks a right to publish. Shown as long as [`route_problem`](Self::route_problem).
    pub fn denied(&self) -> Option<String> {
        self.routes.denied()
    }

    /// Forgets the problem, because the exchange and its bindings were declared again.
    pub fn forget_route_problem(&self) {
        self.routes.forget();
    }

    /// Why the broker takes no messages, while it blocks publishers.
    pub fn block_problem(&self) -> Option<String> {
        self.is_blocked().then(|| "an alarm of the broker blocks publishers (memory or disk)".to_owned())
    }

    /// Whether the broker blocks publishers right now.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Hands a message to a writer; its confirm can be awaited later. Not counted in the metrics.
    ///
    /// # Errors
    /// [`PublishError::Blocked`]; [`PublishError::Busy`] if no in-flight permit became free in time;
    /// [`PublishError::TooLarge`] if the exchange or routing key is too long. [`Pending::confirmed`] returns all
    /// other errors.
    pub async fn send(&self, message: Message) -> Result<Pending, PublishError> {
        if self.is_blocked() {
            return Err(PublishError::Blocked);
        }
        let (publish, claim, answer) = PendingPublish::new(message, self.permit().await?)?;
        match &self.outlet {
            Outlet::Amqp(queue) => queue.push(publish),
            #[cfg(feature = "simulation")]
            Outlet::Simulated(broker) => broker.publish(simulated::Outgoing(publish)),
        }
        let PublisherConfig { acquire_timeout, confirm_timeout, while_connected, .. } = self.config;
        let confirm_timeout = (!while_connected).then_some(confirm_timeout);
        Ok(Pending { answer, claim, acquire_timeout, confirm_timeout })
    }

    /// Publishes a message without a confirm, on a channel of its own: not mandatory, and not counted in the
    /// metrics. If the broker refuses it, only that channel closes.
    ///
    /// # Errors
    /// There is no connection, publishers are blocked, or the message is too large;
    /// [`PublishError::AnnounceRefused`] if the broker refused an earlier announcement.
    pub async fn announce(&self, message: Message) -> Result<(), PublishError> {
        if self.is_blocked() {
            return Err(PublishError::Blocked);
        }
        match &self.outlet {
            Outlet::Amqp(queue) => self.announce_on(queue, message).await,
            #[cfg(feature = "simulation")]
            Outlet::Simulated(broker) => broker.announce(message).await,
        }
    }

    async fn announce_on(&self, queue: &PublishQueue, message: Message) -> Result<(), PublishError> {
        let Message { target, properties, body } = message;
        let address = Address::of(target)?;
        let mut announcing = self.announcing.lock().await;
        if let Some(closed) = announcing.take_if(|it| !it.channel.status().connected())
            && closed.connection.upgrade().is_some_and(|connection| connection.status().connected())
        {
            let exchange = address.exchange.as_str();
            let broker = &queue.pool.manager().broker;
            let user = broker.user().map(|user| format!(" {user:?}")).unwrap_or_default();
            let problem = format!(
                "the broker refused a message to {exchange:?}: user{user} lacks the right write on exchange {exchange:?} in \
                 virtual host {:?}, or on routing keys such as {:?}",
                broker.vhost(),
                address.routing_key.as_str()
            );
            return Err(PublishError::AnnounceRefused(problem));
        }
        let lost = |error: lapin::Error| PublishError::lost(&error);
        let AnnounceChannel { channel, header_limit, .. } = match &*announcing {
            Some(open) => open,
            None => {
                let connection = Arc::clone(&queue.connection().await?.connection);
                let channel = connection.create_channel().await.map_err(lost)?;
                let header_limit = header_limit(&connection);
                let connection = Arc::downgrade(&connection);
                announcing.insert(AnnounceChannel { connection, channel, header_limit })
            }
        };
        fits(&properties, *header_limit)?;
        let Address { exchange, routing_key: key } = address;
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange, key, options, &body, properties).await.map(drop).map_err(lost)
    }

    /// Whether an exchange is missing. False also if the broker does not tell.
    pub async fn is_missing(&self, exchange: &str) -> bool {
        match &self.outlet {
            Outlet::Amqp(queue) => match queue.connection().await {
                Ok(pooled) => is_missing(&pooled.connection, exchange).await.unwrap_or(false),
                Err(_) => false,
            },
            #[cfg(feature = "simulation")]
            Outlet::Simulated(_) => false,
        }
    }

    /// Waits for the messages in flight, at most `confirm_timeout`, then closes the connection.
    pub async fn close(&self) {
        let all = self.config.in_flight.max(1).try_into().unwrap_or(u32::MAX);
        let _ = timeout(self.config.confirm_timeout, self.in_flight.acquire_many(all)).await;
        *self.announcing.lock().await = None;
        match &self.outlet {
            Outlet::Amqp(queue) => queue.pool.close(),
            #[cfg(feature = "simulation")]
            Outlet::Simulated(broker) => broker.close(),
        }
    }

    /// Waits for the in-flight permit of one message.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, PublishError> {
        // Fast path without a timer: a permit is nearly always free.
        if let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() {
            return Ok(permit);
        }
        let waited = self.config.acquire_timeout;
        Box::pin(timeout(waited, Arc::clone(&self.in_flight).acquire_owned()))
            .await
            .map_err(|_| PublishError::Busy { what: "in-flight permit", waited })
            .map(|permit| permit.expect("the semaphore is never closed"))
    }
}

impl Pending {
    /// Whether a writer has claimed the message. From then on the broker may store it, also if the caller gives up.
    pub fn is_under_way(&self) -> bool {
        self.claim.is_taken()
    }

    /// Waits for a connection and then for the broker's confirm.
    ///
    /// # Errors
    /// [`PublishError::Busy`] or [`PublishError::Connect`]: nothing was sent. [`PublishError::TooLarge`]: it can
    /// never be sent. [`PublishError::Unroutable`], [`PublishError::Refused`], [`PublishError::InDoubt`] or
    /// [`PublishError::Denied`]: it was sent and is not confirmed.
    pub async fn confirmed(mut self) -> Result<(), PublishError> {
        let first = self.confirm_timeout.map_or(self.acquire_timeout, |it| it.min(self.acquire_timeout));
        // One timer for the shorter of both timeouts: nearly every confirm arrives before it.
        if let Ok(answer) = timeout(first, &mut self.answer).await {
            return outcome(answer);
        }
        // Boxed, because it is rare and every message holds a future of this function.
        Box::pin(self.confirmed_late(first)).await
    }

    /// Continues after the first timeout, `waited`.
    async fn confirmed_late(mut self, waited: Duration) -> Result<(), PublishError> {
        let Self { acquire_timeout, confirm_timeout, .. } = self;
        if !self.is_under_way() {
            if let Ok(answer) = timeout(acquire_timeout - waited, &mut self.answer).await {
                return outcome(answer);
            }
            if self.claim.take() {
                return Err(PublishError::Busy { what: "connection", waited: acquire_timeout });
            }
        }
        let Some(confirm_timeout) = confirm_timeout else { return outcome(self.answer.await) };
        timeout(confirm_timeout - waited, self.answer)
            .await
            .map_err(|_| PublishError::InDoubt(format!("no confirm within {confirm_timeout:?}")))
            .and_then(outcome)
    }
}

fn outcome(answer: Result<Answer, RecvError>) -> Result<(), PublishError> {
    answer.unwrap_or_else(|_| Err(PublishError::InDoubt("the connection ended".into())))
}

#[cfg(test)]
mod tests;
