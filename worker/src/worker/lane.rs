//! A running lane: its pool, its consumer, and how both are seen.

use std::{sync::Arc, time::Duration};

use garenne_common::{
    broker::BrokerError,
    config::Lane as LaneConfig,
    pool::{Observer, Phase, Placement, Pool, PoolConfig, PoolOptions},
    telemetry::metrics::LaneMetrics,
};
use prometheus::IntGauge;
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::WorkerError;
use crate::{
    bridge::Bridge,
    consumer::{Intake, Link, Meter, Subscriber, Subscription},
    work::LanePool,
};

/// A lane at work.
pub(crate) struct Lane {
    pub(crate) name: Arc<str>,
    pub(crate) pool: LanePool,
    pub(crate) consumer: JoinHandle<()>,
    /// Why its queue is not being consumed; nothing while it is.
    pub(crate) trouble: watch::Receiver<Option<String>>,
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

/// Starts consuming a lane's queue into its bridge. `denied` is told when the broker does not let it.
pub(super) fn start_lane(
    bridge: Arc<Bridge>,
    subscription: Subscription,
    link: Link,
    meter: Meter,
    intake: watch::Receiver<Intake>,
    denied: mpsc::Sender<BrokerError>,
) -> Lane {
    let (trouble, is_in_trouble) = watch::channel(Some("it has not begun".to_owned()));
    let (name, pool) = (Arc::clone(&bridge.lane), bridge.pool.clone());
    let consumer = tokio::spawn(async move {
        let accept = |deliveries| {
            let bridge = Arc::clone(&bridge);
            async move { bridge.accept(deliveries).await }
        };
        Subscriber { link, subscription, meter, intake, trouble, denied: Some(denied), accept }.run().await;
    });
    Lane { name, pool, consumer, trouble: is_in_trouble }
}

/// How often a lane is searched for tasks that waited too long.
const SWEEP: Duration = Duration::from_secs(1);

/// Hands back what has waited here so long that the broker would take it away in the middle of its
/// run; another worker, or this one later, has the whole time again. Ends with its lane.
pub(super) async fn hand_back_in_time(pool: LanePool, longest_wait: Duration) {
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
pub(super) fn show(pool: &LanePool, metrics: &LaneMetrics) {
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
pub(super) fn show_stuck(pools: &[LanePool], stuck: &IntGauge) {
    let all: u64 = pools.iter().map(|pool| pool.snapshot().stuck).sum();
    stuck.set(i64::try_from(all).unwrap_or(i64::MAX));
}
