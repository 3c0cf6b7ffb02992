//! Publishes tasks until each is confirmed. A publish without an answer is repeated under the same id.

use std::{
    num::NonZero,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_amqp::{Broker, Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::{backoff::Backoff, resilience::Retry, supervise};
use garenne_protocol::{
    task::{ContentType, Kind, NewTask, TaskId},
    topology::Names,
};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::task::JoinSet;

/// Maximum of unconfirmed tasks of one publisher.
const IN_FLIGHT: usize = 500;
/// A burst has at most the tasks that the rate allows in a second divided by this.
const BURSTS_PER_SECOND: u32 = 50;

/// Tasks to publish.
#[derive(Clone, Debug)]
pub struct Load {
    /// The broker.
    pub broker: Broker,
    /// The fleet's names.
    pub names: Names,
    /// The kind of every task.
    pub kind: Kind,
    /// The payload of every task, JSON.
    pub payload: Vec<u8>,
    /// A task's id is this prefix, a hyphen and a number. Letters, digits and hyphens only.
    pub id_prefix: String,
    /// The number of tasks.
    pub tasks: u64,
    /// The number of publishers, each with a connection of its own.
    pub publishers: u16,
    /// Tasks per second, of all publishers together. At least 1.
    pub rate: u32,
}

/// Progress of the publishers of a [`Load`].
#[derive(Debug, Default)]
pub struct PublishProgress {
    new_ids: Mutex<Vec<String>>,
    repeated: AtomicU64,
}

/// The publishers of a [`Load`]. The result of each is an error that repeating a publish cannot mend.
pub type Publishers = JoinSet<Result<Result<(), PublishError>, supervise::Failure>>;

impl PublishProgress {
    /// The ids that were confirmed since the last call.
    pub fn take_confirmed(&self) -> Vec<String> {
        std::mem::take(&mut *self.new_ids.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often a task was published again because the broker did not answer.
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Relaxed)
    }
}

impl Load {
    /// Starts the publishers. Each ends when its tasks are confirmed, or after a fatal error.
    pub fn start(&self, progress: &Arc<PublishProgress>) -> Publishers {
        let at_least_one = |number| NonZero::new(number).unwrap_or(NonZero::<u32>::MIN);
        let quota = Quota::per_second(at_least_one(self.rate))
            .allow_burst(at_least_one(self.rate / BURSTS_PER_SECOND));
        let limiter = Arc::new(RateLimiter::direct(quota));
        let mut publishers = JoinSet::new();
        for number in 0..self.publishers {
            let publisher = publish(self.clone(), number, Arc::clone(&limiter), Arc::clone(progress));
            supervise::isolated("publisher", publisher).spawn_into(&mut publishers);
        }
        publishers
    }
}

/// One of n publishers publishes every n-th task.
async fn publish(
    load: Load,
    number: u16,
    limiter: Arc<DefaultDirectRateLimiter>,
    progress: Arc<PublishProgress>,
) -> Result<(), PublishError> {
    let config = PublisherConfig { in_flight: IN_FLIGHT, ..PublisherConfig::default() };
    let publisher = Publisher::new(load.broker.clone(), config);
    let numbers = (number.into()..load.tasks).step_by(load.publishers.into());
    stream::iter(numbers)
        .then(async |number| {
            limiter.until_ready().await;
            Ok(number)
        })
        .try_for_each_concurrent(IN_FLIGHT, |number| publish_task(&publisher, &load, number, &progress))
        .await?;
    publisher.close().await;
    Ok(())
}

/// Publishes one task until it is confirmed.
async fn publish_task(
    publisher: &Publisher,
    load: &Load,
    number: u64,
    progress: &PublishProgress,
) -> Result<(), PublishError> {
    let id = format!("{}-{number}", load.id_prefix);
    let mut task = NewTask::new(load.kind.clone(), ContentType::Json, load.payload.clone());
    task.id = TaskId::parse(&id).expect("the prefix is short and has no character that ids must not have");
    let properties = task.properties(SystemTime::now());
    let target = Target::exchange(load.names.tasks(), load.kind.to_string());
    let message = Message { target, properties, body: task.body.into() };
    let retry = Retry::new(Backoff::default(), usize::MAX).when(|error| !is_fatal(error));
    let publish = || async {
        let published = publisher.publish(message.clone()).await;
        if published.as_ref().is_err_and(PublishError::in_doubt) {
            progress.repeated.fetch_add(1, Relaxed);
        }
        published
    };
    retry.run(publish).await?;
    progress.new_ids.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    Ok(())
}

/// Whether repeating the publish cannot help.
fn is_fatal(error: &PublishError) -> bool {
    matches!(error, PublishError::Unroutable { .. } | PublishError::TooLarge { .. })
        || matches!(error, PublishError::Connect(error) if error.is_final())
}
