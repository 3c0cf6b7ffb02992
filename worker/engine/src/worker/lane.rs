//! A running lane: its pool, its consumer, and how both are seen.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use garenne_amqp::BrokerError;
use garenne_common::{config::Lane as LaneConfig, telemetry::metrics::LaneMetrics};
use garenne_pool::{Observer, Phase, Placement, Pool, PoolConfig, PoolOptions};
use prometheus::IntGauge;
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::task::TaskTracker;

use super::WorkerError;
use crate::{
    consumer::{ConsumerConnection, Intake, SettlementCounters, Subscriber, Subscription},
    execution::LanePool,
    pipeline::LanePipeline,
    supervise::{Panics, restarting},
};

/// A lane at work.
pub(crate) struct Lane {
    pub(crate) name: Arc<str>,
    pub(crate) pool: LanePool,
    /// One for each of its queues.
    pub(crate) consumers: Vec<JoinHandle<()>>,
    /// The ack_writers of their channels.
    pub(crate) ack_writers: TaskTracker,
    pub(crate) problems: ConsumerProblems,
}

/// Why queues of a lane are not being consumed: queue by queue, nothing while it is.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerProblems(Vec<(String, watch::Receiver<Option<String>>)>);

impl ConsumerProblems {
    /// The first queue's that has any; where the lane has several, with its name.
    pub(crate) fn first(&self) -> Option<String> {
        let of = |(queue, trouble): &(String, watch::Receiver<Option<String>>)| {
            let problem = trouble.borrow().clone()?;
            Some(if self.0.len() > 1 { format!("{queue}: {problem}") } else { problem })
        };
        self.0.iter().find_map(of)
    }
}

/// How long a worker of the pool over the minimum may idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// What a long task gets that names no deadline; every kind names one.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

struct Waits(LaneMetrics);

impl Observer for Waits {
    fn started(&self, waited: Duration, _: Placement) {
        self.0.waited(waited);
    }
}

/// Starts a lane's pool.
pub(super) fn start_pool(
    name: &str,
    config: &LaneConfig,
    grace: Duration,
    metrics: &LaneMetrics,
    handlers: Handle,
) -> Result<LanePool, WorkerError> {
    let pool = PoolConfig {
        name: name.to_owned(),
        queue: config.prefetch.into(),
        workers: config.concurrency.min..=config.concurrency.max,
        idle_timeout: IDLE_TIMEOUT,
        default_deadline: DEFAULT_DEADLINE,
        grace,
    };
    metrics.queue_capacity.set(config.prefetch.into());
    let options = PoolOptions { observer: Some(Arc::new(Waits(metrics.clone()))), ..PoolOptions::default() };
    Pool::start_with(pool, handlers, options)
        .map_err(|problem| WorkerError::Pool { lane: name.to_owned(), problem })
}

/// Starts consuming a lane's queues into its pipeline. Each has a channel and a ledger of its own, so that one
/// that is away, or whose deliveries come back, leaves the others alone. `denied` is told when the broker does
/// not let it.
pub(super) fn start_lane(
    pipeline: Arc<LanePipeline>,
    subscriptions: Vec<Subscription>,
    link: ConsumerConnection,
    counters: SettlementCounters,
    intake: watch::Receiver<Intake>,
    denied: mpsc::Sender<BrokerError>,
    panics: &Panics,
) -> Lane {
    let (name, pool) = (Arc::clone(&pipeline.lane), pipeline.pool.clone());
    let (mut consumers, mut troubles) = (Vec::new(), Vec::new());
    let ack_writers = TaskTracker::new();
    for subscription in subscriptions {
        let (trouble, is_in_trouble) = watch::channel(Some("it has not begun".to_owned()));
        troubles.push((subscription.queue.clone(), is_in_trouble));
        let (pipeline, link, counters) = (Arc::clone(&pipeline), link.clone(), counters.clone());
        let (intake, denied) = (intake.clone(), Some(denied.clone()));
        let (ack_writers, panics) = (ack_writers.clone(), panics.clone());
        consumers.push(tokio::spawn(async move {
            let accept = |deliveries| {
                let pipeline = Arc::clone(&pipeline);
                async move { pipeline.accept(deliveries).await }
            };
            let (told, counted) = (trouble.clone(), panics.clone());
            let subscriber = Subscriber {
                connection: link,
                subscription,
                counters,
                intake,
                problem: trouble,
                denied,
                accept,
                ack_writers,
                panics,
            };
            let problem = |panic| drop(told.send_replace(Some(format!("the consumer panicked: {panic}"))));
            restarting("consumer", counted, subscriber, |it| it.run().boxed(), problem).await;
        }));
    }
    Lane { name, pool, consumers, ack_writers, problems: ConsumerProblems(troubles) }
}

/// How often a lane is searched for tasks that waited too long.
const SWEEP: Duration = Duration::from_secs(1);

/// Hands back what has waited here so long that the broker would take it away in the middle of its
/// run; another worker, or this one later, has the whole time again. AttemptEnds with its lane.
pub(super) async fn requeue_overdue_tasks(pool: LanePool, longest_wait: Duration) {
    let mut sweep = tokio::time::interval(SWEEP);
    while pool.snapshot().phase == Phase::Open {
        sweep.tick().await;
        let count = pool.hand_back_waiting(longest_wait);
        if count > 0 {
            tracing::info!(count, ?longest_wait, "handed back what waited too long for its consumer timeout");
        }
    }
}

/// Shows a pool in its lane's gauges; called before each scrape.
pub(super) fn update_lane_gauges(pool: &LanePool, metrics: &LaneMetrics) {
    let snapshot = pool.snapshot();
    let gauge = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics.queue_length.set(i64::try_from(metrics.held()).unwrap_or(i64::MAX));
    metrics.workers_idle.set(gauge(snapshot.workers.idle));
    metrics.workers_busy.set(gauge(snapshot.workers.busy));
    metrics.workers_restarting.set(gauge(snapshot.workers.restarting));
    let restarts = &metrics.worker_restarts;
    restarts.inc_by(snapshot.workers.restarts.saturating_sub(restarts.get()));
}

/// Shows how many tasks of all pools ignore being told to stop; called before each scrape.
pub(super) fn update_stuck_gauge(pools: &[LanePool], stuck: &IntGauge) {
    let all: u64 = pools.iter().map(|pool| pool.snapshot().stuck).sum();
    stuck.set(i64::try_from(all).unwrap_or(i64::MAX));
}
