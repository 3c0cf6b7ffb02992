//! A running lane: its pool, its consumers, and their gauges.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use garenne_amqp::BrokerError;
use garenne_common::{
    config::Lane as LaneConfig,
    supervise::{self, TaskHandle},
    telemetry::metrics::LaneMetrics,
};
use garenne_pool::{Observer, Phase, Placement, Pool, PoolConfig, PoolOptions};
use prometheus::IntGauge;
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
};
use tokio_util::task::TaskTracker;

use super::WorkerError;
use crate::{
    consumer::{ConsumerConnection, Intake, SettlementCounters, Subscriber, Subscription},
    pipeline::{LanePipeline, LanePool},
    status::{ConsumerProblems, LaneStatus},
};

/// A running lane.
pub(crate) struct Lane {
    pub(crate) name: Arc<str>,
    pub(crate) pool: LanePool,
    /// One consumer task per queue.
    pub(crate) consumers: Vec<TaskHandle<()>>,
    /// The ack writers of the consumers' channels.
    pub(crate) ack_writers: TaskTracker,
    pub(crate) problems: ConsumerProblems,
}

impl Lane {
    /// The lane as [`Status`](crate::status::Status) reads it.
    pub(super) fn status(&self) -> LaneStatus {
        let (name, pool, problems) = (Arc::clone(&self.name), self.pool.clone(), self.problems.clone());
        LaneStatus { name, pool, problems }
    }
}

/// Idle time after which a pool worker above the minimum ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The pool's default deadline, which no task uses: every kind has a deadline of its own.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// Reports how long tasks wait in the pool.
struct QueueTimeObserver(LaneMetrics);

impl Observer for QueueTimeObserver {
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
    let options = PoolOptions {
        observer: Some(Arc::new(QueueTimeObserver(metrics.clone()))),
        ..PoolOptions::default()
    };
    Pool::start_with(pool, handlers, options)
        .map_err(|problem| WorkerError::Pool { lane: name.to_owned(), problem })
}

/// Starts to consume a lane's queues into its pipeline.
///
/// Each queue has its own channel and ledger, so that a missing queue or a failed channel does not affect the others.
/// `denied` receives an error if the broker denies a queue from the start.
pub(super) fn start_lane(
    pipeline: Arc<LanePipeline>,
    subscriptions: Vec<Subscription>,
    connection: ConsumerConnection,
    counters: SettlementCounters,
    intake: watch::Receiver<Intake>,
    denied: mpsc::Sender<BrokerError>,
) -> Lane {
    let (name, pool) = (Arc::clone(&pipeline.lane), pipeline.pool.clone());
    let (mut consumers, mut problems) = (Vec::new(), Vec::new());
    let ack_writers = TaskTracker::new();
    for subscription in subscriptions {
        let (problem, current_problem) = watch::channel(Some("consuming has not started".to_owned()));
        problems.push((subscription.queue.clone(), current_problem));
        let (pipeline, connection, counters) = (Arc::clone(&pipeline), connection.clone(), counters.clone());
        let (intake, denied) = (intake.clone(), Some(denied.clone()));
        let process = move |deliveries| {
            let pipeline = Arc::clone(&pipeline);
            async move { pipeline.process(deliveries).await }
        };
        let failed = problem.clone();
        let on_failure = move |failure: &supervise::Failure| {
            failed.send_replace(Some(format!("the consumer failed: {failure}")));
        };
        let subscriber = Subscriber {
            connection,
            subscription,
            counters,
            intake,
            problem,
            denied,
            accept: process,
            ack_writers: ack_writers.clone(),
        };
        let consumer = supervise::restarting_with("consumer", subscriber, |it| it.run().boxed(), on_failure);
        consumers.push(consumer.spawn());
    }
    Lane { name, pool, consumers, ack_writers, problems: ConsumerProblems::new(problems) }
}

/// How often a lane is checked for tasks that waited too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Requeues tasks that have waited so long that they could reach the consumer timeout while they run. After the
/// redelivery the whole timeout is available again. Returns when the pool is no longer open.
pub(super) async fn requeue_overdue_tasks(pool: LanePool, max_wait: Duration) {
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    while pool.snapshot().phase == Phase::Open {
        sweep.tick().await;
        let count = pool.hand_back_waiting(max_wait);
        if count > 0 {
            tracing::info!(count, ?max_wait, "requeued tasks that waited too long for the consumer timeout");
        }
    }
}

/// Updates the gauges of a lane. Called before each scrape.
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

/// Updates the number of tasks in all pools that ignore a stop. Called before each scrape.
pub(super) fn update_stuck_gauge(pools: &[LanePool], stuck: &IntGauge) {
    let count: u64 = pools.iter().map(|pool| pool.snapshot().stuck).sum();
    stuck.set(i64::try_from(count).unwrap_or(i64::MAX));
}
