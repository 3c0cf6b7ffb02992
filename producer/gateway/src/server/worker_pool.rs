//! An elastic pool of workers that poll connections.
//!
//! A worker polls a connection until it is pending and then takes the next one. The waker of a connection (bytes, a
//! confirm, a timer) puts it back into the pool's queue. So a connection that is idle or waits for the broker
//! occupies no worker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_task::Runnable;
use garenne_pool::{ConfigError, Pool, PoolConfig, Spec, Task, TaskContext};
use tokio::runtime::Handle;

use crate::limits::Limits;

/// How long a worker above the minimum stays without work.
const WORKER_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct WorkerPool {
    pool: Pool<PollConnection, ()>,
    /// Connections that wait for a worker.
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
}

impl WorkerPool {
    pub(super) fn start(limits: &Limits, runtime: Handle) -> Result<Self, ConfigError> {
        let config = PoolConfig {
            name: "gateway".to_owned(),
            // Each connection is queued at most once, so that a wake-up always finds room.
            queue: limits.max_connections.max(limits.workers.max),
            workers: limits.workers.min..=limits.workers.max,
            idle_timeout: WORKER_IDLE_TIMEOUT,
            default_deadline: Duration::from_secs(3600),
            grace: Duration::from_secs(1),
        };
        let pool = Pool::start(config, runtime)?;
        Ok(Self { pool, waiting: Arc::default(), max_waiting: limits.max_waiting })
    }

    /// Whether another connection would slow down all others.
    pub(super) fn is_overloaded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.max_waiting
    }

    /// Serves a connection.
    pub(super) fn serve(&self, serving: impl Future<Output = ()> + Send + 'static) {
        let (pool, waiting) = (self.pool.clone(), Arc::clone(&self.waiting));
        // Called at the start and by the connection's waker.
        let enqueue = move |runnable: Runnable| {
            waiting.fetch_add(1, Ordering::Relaxed);
            let poll = PollConnection { runnable, waiting: Arc::clone(&waiting) };
            if pool.submit_detached(Spec::short("connection"), poll, ()).is_err() {
                // Only a closing pool refuses. The connection is dropped with the runnable.
                tracing::debug!("connection dropped: the pool is closing");
            }
        };
        // Without tokio's cooperative budget, which is per task: a pool worker is one task and would never get a new
        // budget. A poll is bounded by the bytes that are available.
        let (runnable, task) = async_task::spawn(tokio::task::unconstrained(serving), enqueue);
        task.detach();
        runnable.schedule();
    }
}

/// Polls a connection once.
struct PollConnection {
    runnable: Runnable,
    waiting: Arc<AtomicUsize>,
}

impl Task for PollConnection {
    type Output = ();

    async fn run(self, _cx: TaskContext) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.runnable.run();
    }
}
