//! Publishes tasks until each is confirmed. A publish without an answer is repeated under the same id.

use std::{
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use anyhow::{Context, Result, anyhow};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_amqp::{Broker, Message, PublishError, Publisher, PublisherConfig, Target};
use garenne_common::{backoff::Backoff, resilience::Retry, supervise};
use garenne_operator::operator::Operator;
use garenne_protocol::task::{ContentType, Kind, NewTask, TaskId};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::{sync::mpsc, task::JoinSet};

use crate::cli::RunArgs;

/// Maximum of unconfirmed tasks of one publisher.
const IN_FLIGHT: usize = 500;
/// A burst has at most the tasks that the rate allows in a second divided by this.
const BURSTS_PER_SECOND: u32 = 50;

/// The tasks that the publishers share.
struct Load {
    broker: Broker,
    exchange: String,
    kind: Kind,
    payload: Vec<u8>,
    /// A task's id is this prefix, a hyphen and a number.
    id_prefix: String,
    limiter: DefaultDirectRateLimiter,
    confirm: mpsc::UnboundedSender<String>,
    repeated: AtomicU64,
}

/// Running publishers, each with a connection of its own.
pub(crate) struct Publishers {
    load: Arc<Load>,
    /// The result of each is an error that repeating a publish cannot mend.
    running: JoinSet<Result<Result<(), PublishError>, supervise::Failure>>,
    confirmed: mpsc::UnboundedReceiver<String>,
}

impl Publishers {
    /// Starts the publishers. Each publishes every n-th task, and ends when its tasks are confirmed or cannot be
    /// published.
    pub(crate) fn start(operator: &Operator, args: &RunArgs, kind: Kind) -> Self {
        let at_least_one = |number| NonZero::new(number).unwrap_or(NonZero::<u32>::MIN);
        let burst = at_least_one(args.rate / BURSTS_PER_SECOND);
        let quota = Quota::per_second(at_least_one(args.rate)).allow_burst(burst);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (confirm, confirmed) = mpsc::unbounded_channel();
        let load = Arc::new(Load {
            broker: operator.broker.clone(),
            exchange: operator.names.tasks(),
            kind,
            payload: args.payload.clone().into_bytes(),
            id_prefix: format!("drill-{}-{}", args.seed, now.as_millis()),
            limiter: RateLimiter::direct(quota),
            confirm,
            repeated: AtomicU64::new(0),
        });
        let mut running = JoinSet::new();
        for number in 0..args.publishers {
            let numbers = (number.into()..args.tasks).step_by(args.publishers.into());
            let publisher = publish(Arc::clone(&load), numbers);
            supervise::isolated("publisher", publisher).spawn_into(&mut running);
        }
        Self { load, running, confirmed }
    }

    /// Returns the ids that were confirmed since the last call. Fails if tasks cannot be published.
    pub(crate) fn poll(&mut self) -> Result<Vec<String>> {
        while let Some(ended) = self.running.try_join_next() {
            let ended = ended.context("publisher failed")?.context("publisher failed")?;
            ended.map_err(|error| anyhow!("cannot publish: {error}"))?;
        }
        Ok(std::iter::from_fn(|| self.confirmed.try_recv().ok()).collect())
    }

    /// Whether every task is confirmed.
    pub(crate) fn are_done(&self) -> bool {
        self.running.is_empty()
    }

    /// How often a task was published again because the broker did not answer.
    pub(crate) fn repeated(&self) -> u64 {
        self.load.repeated.load(Relaxed)
    }
}

async fn publish(load: Arc<Load>, numbers: impl Iterator<Item = u64> + Send) -> Result<(), PublishError> {
    let config = PublisherConfig { in_flight: IN_FLIGHT, ..PublisherConfig::default() };
    let publisher = Publisher::new(load.broker.clone(), config);
    stream::iter(numbers)
        .then(async |number| {
            load.limiter.until_ready().await;
            Ok(number)
        })
        .try_for_each_concurrent(IN_FLIGHT, |number| publish_task(&publisher, &load, number))
        .await?;
    publisher.close().await;
    Ok(())
}

/// Publishes one task until it is confirmed.
async fn publish_task(publisher: &Publisher, load: &Load, number: u64) -> Result<(), PublishError> {
    let id = format!("{}-{number}", load.id_prefix);
    let mut task = NewTask::new(load.kind.clone(), ContentType::Json, load.payload.clone());
    task.id = TaskId::parse(&id).expect("the prefix is short and has no character that ids must not have");
    let properties = task.properties(SystemTime::now());
    let target = Target::exchange(load.exchange.clone(), load.kind.to_string());
    let message = Message { target, properties, body: task.body.into() };
    let retry = Retry::new(Backoff::default(), usize::MAX).when(|error| !is_fatal(error));
    let publish = || async {
        let published = publisher.publish(message.clone()).await;
        if published.as_ref().is_err_and(PublishError::in_doubt) {
            load.repeated.fetch_add(1, Relaxed);
        }
        published
    };
    retry.run(publish).await?;
    // The receiver is dropped when the run ends.
    let _ = load.confirm.send(id);
    Ok(())
}

/// Whether repeating the publish cannot help.
fn is_fatal(error: &PublishError) -> bool {
    matches!(error, PublishError::Unroutable { .. } | PublishError::TooLarge { .. })
        || matches!(error, PublishError::Connect(error) if error.is_final())
}
