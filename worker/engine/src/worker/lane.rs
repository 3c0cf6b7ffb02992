//! A lane of a running worker, its pool and its gauges.

use std::{sync::Arc, time::Duration};

use garenne_common::{config::Lane as LaneConfig, telemetry::metrics::LaneMetrics};
use garenne_pool::{Observer, Phase, Placement, Pool, PoolConfig, PoolOptions};
use prometheus::IntGauge;
use tokio::runtime::Handle;

use super::WorkerError;
use crate::pipeline::LanePool;

/// Idle time after which a pool worker above the minimum ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The pool's default deadline, which no task uses: every kind has a deadline of its own.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// A lane, or the quarantine, and its pool.
pub(super) struct Lane {
    pub(super) name: Arc<str>,
    pub(super) config: LaneConfig,
    pub(super) is_quarantine: bool,
    pub(super) metrics: LaneMetrics,
    pub(super) pool: LanePool,
}

/// Reports how long tasks wait in the pool.
struct QueueTimeObserver(LaneMetrics);

impl Observer for QueueTimeObserver {
    fn started(&self, waited: Duration, _: Placement) {
        self.0.waited(waited);
    }
}

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
    let refused = |problem| WorkerError::Pool { lane: name.to_owned(), problem };
    #[cfg(feature = "simulation")]
    if garenne_common::simulation::is_running() {
        let spawn = garenne_common::supervise::spawn_in_current;
        let simulation = garenne_pool::Simulation { random: garenne_common::random::chance, spawn };
        return Pool::start_simulated(simulation, pool, handlers, options).map_err(refused);
    }
    Pool::start_with(pool, handlers, options).map_err(refused)
}

/// How often a lane is checked for tasks that waited too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Requeues tasks that have waited so long that they could reach the consumer timeout while they run. After the
/// redelivery the whole timeout is available again. Returns when the pool is no longer open.
pub(super) async fn requeue_overdue_tasks(pool: &LanePool, max_wait: Duration) {
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    while pool.snapshot().phase == Phase::Open {
        sweep.tick().await;
        let count = pool.hand_back_waiting(max_wait);
        if count > 0 {
            tracing::info!(count, ?max_wait, "requeued tasks that waited too long for the consumer timeout");
        }
    }
}

/// Updates the gauges of all lanes, and the number of tasks that ignore a stop. Called before each scrape.
pub(super) fn update_gauges(lanes: &[(LanePool, LaneMetrics)], stuck: &IntGauge) {
    let gauge = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut stuck_tasks = 0;
    for (pool, metrics) in lanes {
        let snapshot = pool.snapshot();
        stuck_tasks += snapshot.stuck;
        metrics.queue_length.set(i64::try_from(metrics.held()).unwrap_or(i64::MAX));
        metrics.workers_idle.set(gauge(snapshot.workers.idle));
        metrics.workers_busy.set(gauge(snapshot.workers.busy));
        metrics.workers_restarting.set(gauge(snapshot.workers.restarting));
        let restarts = &metrics.worker_restarts;
        restarts.inc_by(snapshot.workers.restarts.saturating_sub(restarts.get()));
    }
    stuck.set(i64::try_from(stuck_tasks).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use garenne_common::{clock, telemetry::Metrics};
    use garenne_pool::Stop;
    use garenne_protocol::{
        settlement::Settlement,
        task::{ContentType, Kind, NewTask},
    };
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{consumer::Delivery, pipeline::lane_env};

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_too_long_for_the_consumer_timeout_is_requeued_until_its_pool_closes() {
        let mut env = lane_env().await;
        let metrics = Metrics::new("test").lane("fast");
        let pool = start_pool("fast", &LaneConfig::default(), MINUTE, &metrics, Handle::current()).unwrap();
        Arc::get_mut(&mut env.pipeline).unwrap().pool = pool.clone();
        let sweep = tokio::spawn({
            let pool = pool.clone();
            async move { requeue_overdue_tasks(&pool, MINUTE).await }
        });
        pool.group("import").pause();
        let kind = Kind::parse("any.thing").unwrap();
        let task =
            NewTask { group: Some("import".into()), ..NewTask::new(kind, ContentType::Json, Vec::new()) };
        let mut delivery = Delivery::mock(&env.test.generation, 1, b"{}");
        delivery.head_mut().routing_key = "any.thing".into();
        delivery.set_properties(task.properties(clock::now()));
        env.pipeline.process(vec![delivery]).await.unwrap();
        assert_eq!(pool.snapshot().queued, 1);

        sleep(MINUTE).await;
        assert_eq!(env.test.generation.requested_settlements(), []);
        sleep(2 * SWEEP_INTERVAL).await;
        assert_eq!(env.test.generation.requested_settlements(), [(1, Settlement::Requeued)]);
        pool.begin_shutdown(Stop::Light);
        timeout(MINUTE, sweep).await.expect("the sweep ends with the pool").unwrap();
    }
}
