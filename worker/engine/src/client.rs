//! Publishing tasks.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Broker, Message, PendingReply, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::{certificates::Certificates, clock};
use garenne_protocol::{
    task::{Kind, NewTask, TaskId},
    topology::Names,
};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::{
    draft::{Draft, draft_options},
    payload::Payload,
};

mod error;
mod wait;

pub use error::EnqueueError;
pub use wait::WaitError;

/// Time between two attempts to reach a broker that is not there yet.
const CONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// Publishes tasks, with a confirm for each. Cheap to clone; clones share one connection, which is opened again when it
/// is lost. Any number of tasks may be in flight at once, of which 1,000 wait for their confirms.
///
/// ```no_run
/// use garenne::{Client, json_payload};
/// use std::time::Duration;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Resize {
///     url: String,
///     width: u32,
/// }
/// json_payload!(Resize, "image.resize");
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("amqp://guest:guest@127.0.0.1:5672/%2f").await?;
/// let id = client.enqueue(Resize { url: "a.png".into(), width: 80 }).await?;
/// println!("published {id}");
/// client.enqueue(Resize { url: "b.png".into(), width: 80 }).delay(Duration::from_secs(60)).group("import").await?;
/// client.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    publisher: Publisher,
    /// Has a connection of its own, which opens with the first wait.
    requests: Publisher,
    names: Names,
    vhost: String,
    is_closed: Arc<AtomicBool>,
}

impl Client {
    /// Connects to the broker at `url`, for a fleet with the default prefix `garenne`.
    ///
    /// # Errors
    /// [`EnqueueError::Connect`].
    pub async fn connect(url: &str) -> Result<Self, EnqueueError> {
        Self::builder(url).connect().await
    }

    /// A client of the broker at `url`, with settings of its own.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            prefix: "garenne".to_owned(),
            certificates: Certificates::default(),
            connect_timeout: Duration::ZERO,
        }
    }

    fn new(broker: Broker, prefix: &str) -> Self {
        let vhost = broker.vhost();
        let publisher = Publisher::new(broker.clone(), PublisherConfig::default());
        let requests = Publisher::requesting(broker, PublisherConfig::default());
        Self { publisher, requests, names: Names::new(prefix), vhost, is_closed: Arc::default() }
    }

    /// A task of the payload's kind. Await it to publish it.
    pub fn enqueue<P: Payload + Serialize>(&self, payload: P) -> Enqueue<'_> {
        self.enqueue_kind(P::KIND, &payload)
    }

    /// A task of any kind. Await it to publish it.
    pub fn enqueue_kind<P: Serialize + ?Sized>(&self, kind: &str, payload: &P) -> Enqueue<'_> {
        Enqueue { client: self, draft: Draft::new(kind, payload) }
    }

    /// Closes the connections, of all clones too. Tasks in flight get [`EnqueueError::TimedOut`], waits
    /// [`WaitError::ConnectionLost`], and further tasks [`EnqueueError::Closed`].
    pub async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        tokio::join!(self.publisher.close(), self.requests.close());
    }

    async fn publish(&self, task: NewTask) -> Result<TaskId, EnqueueError> {
        let (id, kind, message) = self.message(task)?;
        self.publisher.publish(message).await.map_err(|error| self.error(error, &kind))?;
        Ok(id)
    }

    /// Publishes a task that asks for an answer.
    async fn request(&self, task: NewTask, correlation_id: &str) -> Result<PendingReply, EnqueueError> {
        let (_, kind, message) = self.message(task)?;
        self.requests.request(message, correlation_id).await.map_err(|error| self.error(error, &kind))
    }

    fn message(&self, task: NewTask) -> Result<(TaskId, Kind, Message), EnqueueError> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(EnqueueError::Closed);
        }
        // Only lanes with several queues use the key.
        let task = task.keyed();
        let target = Target::exchange(self.names.tasks(), task.kind.as_str().to_owned());
        let properties = task.properties(clock::now());
        Ok((task.id, task.kind, Message { target, properties, body: task.body.into() }))
    }

    fn error(&self, error: PublishError, kind: &Kind) -> EnqueueError {
        EnqueueError::of(error, &self.names.tasks(), kind, &self.vhost)
    }
}

/// The settings of a [`Client`] that is not connected yet.
///
/// ```no_run
/// use garenne::{Client, broker::Certificates};
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), garenne::EnqueueError> {
/// let certificates = Certificates { ca: Some("/etc/ssl/our-ca.pem".into()), ..Certificates::default() };
/// let url = "amqps://shop:secret@rabbitmq.internal/%2f";
/// let client = Client::builder(url).prefix("shop").certificates(certificates);
/// let client = client.connect_timeout(Duration::from_secs(30)).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a client is made by connect"]
pub struct ClientBuilder {
    url: String,
    prefix: String,
    certificates: Certificates,
    connect_timeout: Duration,
}

impl ClientBuilder {
    /// The prefix of the fleet's exchanges and queues, the setting `prefix` of its workers. The default is `garenne`.
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..self }
    }

    /// PEM files for a broker with TLS: an authority of one's own, and a certificate of the client. They are read for each
    /// connection.
    pub fn certificates(self, certificates: Certificates) -> Self {
        Self { certificates, ..self }
    }

    /// How long [`connect`](Self::connect) waits for a broker that is not there yet, as a worker does at its start. Default: it
    /// does not wait.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self { connect_timeout: timeout, ..self }
    }

    /// Connects to the broker.
    ///
    /// # Errors
    /// [`EnqueueError::Connect`].
    pub async fn connect(self) -> Result<Client, EnqueueError> {
        let broker = Broker::new(&self.url, "garenne client").map_err(EnqueueError::Connect)?;
        let client = Client::new(broker.with_certificates(self.certificates), &self.prefix);
        let until = Instant::now() + self.connect_timeout;
        loop {
            match client.publisher.connect().await {
                Ok(()) => return Ok(client),
                Err(PublishError::Connect(error)) if !error.is_final() && Instant::now() < until => {
                    sleep_until(until.min(Instant::now() + CONNECT_INTERVAL)).await;
                }
                Err(error) => return Err(EnqueueError::of_connection(error)),
            }
        }
    }
}

/// A task to publish. Await it: the result is the task's id after the broker has confirmed that the task is stored.
///
/// ```no_run
/// # async fn run(client: garenne::Client) -> Result<(), garenne::EnqueueError> {
/// let report = client.enqueue_kind("report.build", &"2026-01");
/// report.id("report/2026-01").header("tenant", "acme").header("priority", 3).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a task is published when this is awaited"]
pub struct Enqueue<'c> {
    client: &'c Client,
    draft: Draft,
}

impl Enqueue<'_> {
    draft_options!();

    /// Sets the task's id, 1 to 128 bytes without control characters. By default the id is random.
    ///
    /// The broker stores every task that is published, so a task that is published twice with one id runs twice. What is
    /// done once per id are effects that are stored under it: results in the sink `postgres`, follow-ups, which get the same
    /// ids again, and what handlers do with [`TaskContext::id`](crate::handler::TaskContext::id) as a key. Publish again with
    /// the same id what may not have been stored.
    pub fn id(self, id: &str) -> Self {
        Self { draft: self.draft.id(id), ..self }
    }
}

impl<'c> IntoFuture for Enqueue<'c> {
    type Output = Result<TaskId, EnqueueError>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, draft } = self;
        async move { client.publish(task_of(draft)?).await }.boxed()
    }
}

fn task_of(draft: Draft) -> Result<NewTask, EnqueueError> {
    Ok(draft.into_content().map_err(|(_, error)| error)?.into_task())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn client() -> Client {
        // Nothing listens on port 1; the options are checked before a connection is used.
        let broker = Broker::new("amqp://127.0.0.1:1", "test").unwrap();
        Client::new(broker, "garenne")
    }

    async fn error_of(set: impl FnOnce(Enqueue<'_>) -> Enqueue<'_>) -> String {
        let client = client();
        set(client.enqueue_kind("a.b", &json!({}))).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn options_out_of_their_bounds_are_refused_before_anything_is_sent() {
        let long = "x".repeat(256);
        let too_long = Duration::from_secs(31 * 24 * 3600);
        let limit = "expected at most 30days";
        assert_eq!(error_of(|task| task.delay(too_long)).await, format!("delay is out of range: {limit}"));
        assert_eq!(
            error_of(|task| task.timeout(too_long)).await,
            format!("timeout is out of range: {limit}")
        );
        assert_eq!(error_of(|task| task.key("")).await, "key is out of range: expected 1 to 255 bytes");
        assert_eq!(
            error_of(|task| task.group(long.as_str())).await,
            "group is out of range: expected 1 to 255 bytes"
        );
        assert_eq!(
            error_of(|task| task.id(&long)).await,
            "message_id has 256 bytes, at most 128 are allowed"
        );
        assert!(
            error_of(|task| task.header("x-death", 1))
                .await
                .starts_with("header name \"x-death\" is refused")
        );
        let client = client();
        let kind = client.enqueue_kind("a b", &json!({})).await.unwrap_err();
        assert!(matches!(kind, EnqueueError::Kind(_)), "{kind}");
        let key = client
            .enqueue_kind("a.b", &[((1, 2), 3)].into_iter().collect::<std::collections::HashMap<_, _>>());
        assert!(matches!(key.await.unwrap_err(), EnqueueError::Payload(_)));
    }

    #[tokio::test]
    async fn a_broker_that_is_away_is_a_connection_error() {
        let error = client().enqueue_kind("a.b", &json!({})).await.unwrap_err();
        assert!(matches!(error, EnqueueError::Connect(_)), "{error}");
        let waited = client().enqueue_kind("a.b", &json!({})).wait::<()>(Duration::from_secs(60)).await;
        assert!(matches!(waited, Err(WaitError::Enqueue(EnqueueError::Connect(_)))), "{waited:?}");
        assert!(matches!(Client::connect("http://x").await.map(drop), Err(EnqueueError::Connect(_))));
    }
}
