//! Publishing tasks.

use std::{future::IntoFuture, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Broker, BrokerError, Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::clock;
use garenne_protocol::{
    task::{ContentType, Envelope, IdError, Kind, KindError, NewTask, TaskId},
    topology::Names,
};
use serde::Serialize;
use thiserror::Error;

use crate::payload::Payload;

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
    names: Names,
}

/// Why a task is not known to be stored.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// Nothing was sent: the broker's URL is invalid or the connection could not be opened.
    #[error(transparent)]
    Connect(BrokerError),
    /// Nothing was sent: the payload cannot be written as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Payload(String),
    /// Nothing was sent: the kind cannot be a routing key.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// Nothing was sent: the task id is invalid.
    #[error(transparent)]
    Id(#[from] IdError),
    /// Nothing was sent: an option is out of its bounds.
    #[error("{option} is out of range: expected {expected}")]
    OutOfRange {
        /// `delay`, `timeout`, `key` or `group`.
        option: &'static str,
        /// The bounds.
        expected: String,
    },
    /// Nothing was stored: the task is over a limit of the broker. Publishing it again fails again.
    #[error("the task's {what} has {bytes} bytes, {limit} are allowed")]
    TooLarge {
        /// `routing key`, `header frame` or `body`.
        what: &'static str,
        /// Its size, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// Nothing was stored: no queue takes tasks of the kind, a queue is full, or the broker blocks publishers. It may
    /// be published again.
    #[error("the broker refused the task: {0}")]
    Refused(String),
    /// The task may be stored: no confirm arrived in time, or the connection ended before. Publish it again with the
    /// same [id](Enqueue::id).
    #[error("no confirm for the task: {0}")]
    TimedOut(String),
}

impl From<PublishError> for EnqueueError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Connect(error) => Self::Connect(error),
            PublishError::TooLarge { what, bytes, limit } => Self::TooLarge { what, bytes, limit },
            PublishError::InDoubt(_) | PublishError::Denied(_) => Self::TimedOut(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

impl Client {
    /// Connects to the broker at `url`, for a fleet with the default prefix `garenne`.
    ///
    /// # Errors
    /// [`EnqueueError::Connect`].
    pub async fn connect(url: &str) -> Result<Self, EnqueueError> {
        Self::connect_to_fleet(url, "garenne").await
    }

    /// Connects to the broker at `url`, for a fleet with this prefix.
    ///
    /// # Errors
    /// [`EnqueueError::Connect`].
    pub async fn connect_to_fleet(url: &str, prefix: &str) -> Result<Self, EnqueueError> {
        let broker = Broker::new(url, "garenne client").map_err(EnqueueError::Connect)?;
        let publisher = Publisher::new(broker, PublisherConfig::default());
        publisher.connect().await?;
        Ok(Self { publisher, names: Names::new(prefix) })
    }

    /// A task of the payload's kind. Await it to publish it.
    pub fn enqueue<P: Payload + Serialize>(&self, payload: P) -> Enqueue<'_> {
        self.enqueue_kind(P::KIND, &payload)
    }

    /// A task of any kind. Await it to publish it.
    pub fn enqueue_kind(&self, kind: &str, payload: &impl Serialize) -> Enqueue<'_> {
        Enqueue { client: self, task: new_task(kind, payload) }
    }

    /// Closes the connection. Tasks in flight get [`EnqueueError::TimedOut`].
    pub async fn close(&self) {
        self.publisher.close().await;
    }

    async fn publish(&self, task: NewTask) -> Result<TaskId, EnqueueError> {
        // Only lanes with several queues use the key.
        let task = task.keyed();
        let target = Target::exchange(self.names.tasks(), task.kind.as_str().to_owned());
        let properties = task.properties(clock::now());
        self.publisher.publish(Message { target, properties, body: task.body.into() }).await?;
        Ok(task.id)
    }
}

fn new_task(kind: &str, payload: &impl Serialize) -> Result<NewTask, EnqueueError> {
    let body = serde_json::to_vec(payload).map_err(|error| EnqueueError::Payload(error.to_string()))?;
    Ok(NewTask::new(Kind::parse(kind)?, ContentType::Json, body))
}

/// A task to publish. Await it: the result is the task's id after the broker has confirmed that the task is stored.
#[must_use = "a task is published when this is awaited"]
pub struct Enqueue<'c> {
    client: &'c Client,
    task: Result<NewTask, EnqueueError>,
}

impl Enqueue<'_> {
    /// Sets the task's id, 1 to 128 bytes without control characters. Effects happen once per id. By default the id is
    /// random.
    pub fn id(self, id: &str) -> Self {
        self.with(|task| Ok(NewTask { id: TaskId::parse(id)?, ..task }))
    }

    /// Starts the task after this time, at most 30 days.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|task| Ok(NewTask { delay: Some(check_span("delay", delay)?), ..task }))
    }

    /// Limits the run time of an attempt, at most 30 days. Tasks of short kinds have no timer.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|task| Ok(NewTask { timeout: Some(check_span("timeout", timeout)?), ..task }))
    }

    /// Sets the key, 1 to 255 bytes. Tasks with equal keys go to the same queue of a lane with several queues.
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with(|task| Ok(NewTask { key: Some(check_text("key", key.into())?), ..task }))
    }

    /// Sets the group, 1 to 255 bytes. Tasks of a group are paused and stopped together.
    pub fn group(self, group: impl Into<String>) -> Self {
        self.with(|task| Ok(NewTask { group: Some(check_text("group", group.into())?), ..task }))
    }

    /// Applies an option. The first error is returned when the task is awaited.
    fn with(self, set: impl FnOnce(NewTask) -> Result<NewTask, EnqueueError>) -> Self {
        Self { task: self.task.and_then(set), ..self }
    }
}

impl<'c> IntoFuture for Enqueue<'c> {
    type Output = Result<TaskId, EnqueueError>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, task } = self;
        async move { client.publish(task?).await }.boxed()
    }
}

fn check_span(option: &'static str, span: Duration) -> Result<Duration, EnqueueError> {
    let max = Duration::from_millis(Envelope::MAX_MS.unsigned_abs());
    let expected = || format!("at most {}", humantime::format_duration(max));
    if span <= max { Ok(span) } else { Err(EnqueueError::OutOfRange { option, expected: expected() }) }
}

fn check_text(option: &'static str, text: String) -> Result<String, EnqueueError> {
    let is_valid = (1..=Envelope::MAX_TEXT).contains(&text.len());
    let expected = || format!("1 to {} bytes", Envelope::MAX_TEXT);
    if is_valid { Ok(text) } else { Err(EnqueueError::OutOfRange { option, expected: expected() }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn client() -> Client {
        // Nothing listens on port 1; the options are checked before a connection is used.
        let broker = Broker::new("amqp://127.0.0.1:1", "test").unwrap();
        Client { publisher: Publisher::new(broker, PublisherConfig::default()), names: Names::new("garenne") }
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
        assert!(matches!(Client::connect("http://x").await.map(drop), Err(EnqueueError::Connect(_))));
    }
}
