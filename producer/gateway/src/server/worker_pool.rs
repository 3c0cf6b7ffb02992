//! An elastic pool of workers that poll connections.
//!
//! A worker polls a connection until it is pending and then takes the next one. The waker of a connection (bytes, a
//! confirm, a timer) puts it back into the pool's queue. So a connection that is idle or waits for the broker
//! occupies no worker.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::future::BoxFuture;
use garenne_pool::{ConfigError, Pool, PoolConfig, Spec, Task, TaskContext};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::{Server, active_guard::ActiveGuard};
use crate::{connection::Connection, instruments::Instruments, limits::Limits};

const NAME: &str = "worker-pool";

/// How long a worker above the minimum stays without work.
const WORKER_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct WorkerPool {
    pool: Pool<PollConnection, ()>,
    permits: Arc<Semaphore>,
    /// Connections that wait for a worker.
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
    sessions: TaskTracker,
    active: IntGauge,
}

impl WorkerPool {
    /// # Errors
    /// The limits contradict each other.
    pub(super) fn start(limits: &Limits, instruments: &Instruments) -> Result<Self, ConfigError> {
        let config = PoolConfig {
            name: "gateway".to_owned(),
            // Each connection is queued at most once, so that a wake-up always finds room.
            queue: limits.max_connections.max(limits.workers.max),
            workers: limits.workers.min..=limits.workers.max,
            idle_timeout: WORKER_IDLE_TIMEOUT,
            default_deadline: Duration::from_secs(3600),
            grace: Duration::from_secs(1),
        };
        let pool = Pool::start(config, tokio::runtime::Handle::current())?;
        Ok(Self {
            pool,
            permits: Arc::new(Semaphore::new(limits.max_connections)),
            waiting: Arc::default(),
            max_waiting: limits.max_waiting,
            sessions: TaskTracker::new(),
            active: instruments.connections(NAME, "active"),
        })
    }
}

impl Server for WorkerPool {
    fn name(&self) -> &'static str {
        NAME
    }

    fn offer(&self, connection: Connection) -> Result<(), Connection> {
        // The workers are overloaded: another connection would slow down all others.
        if self.waiting.load(Ordering::Relaxed) >= self.max_waiting {
            return Err(connection);
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return Err(connection) };
        let session = Arc::new(Session {
            // Without tokio's cooperative budget, which is per task: a pool worker is one task and would never get a
            // new budget. A poll is bounded by the bytes that are available.
            future: Mutex::new(Some(Box::pin(tokio::task::unconstrained(connection.serve())))),
            state: AtomicU8::new(IDLE),
            pool: self.pool.clone(),
            waiting: Arc::clone(&self.waiting),
            _permit: permit,
            _active: ActiveGuard::new(&self.active),
            _tracked: self.sessions.token(),
        });
        session.wake();
        Ok(())
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.sessions.close();
            self.sessions.wait().await;
        })
    }
}

/// Waits for its waker.
const IDLE: u8 = 0;
/// In the pool's queue.
const QUEUED: u8 = 1;
/// A worker polls it.
const RUNNING: u8 = 2;
/// A worker polls it, and it was woken meanwhile: it is queued again after the poll.
const WOKEN: u8 = 3;

/// A connection and its state.
struct Session {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    state: AtomicU8,
    pool: Pool<PollConnection, ()>,
    waiting: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
    _active: ActiveGuard,
    _tracked: TaskTrackerToken,
}

impl Session {
    fn submit(self: Arc<Self>) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let pool = self.pool.clone();
        if pool.submit_detached(Spec::short("connection"), PollConnection(self), ()).is_err() {
            // Only a closing pool refuses. The connection is dropped with the task.
            tracing::debug!("connection dropped: the pool is closing");
        }
    }
}

impl Wake for Session {
    fn wake(self: Arc<Self>) {
        let next = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE) {
            self.submit();
        }
    }
}

/// Polls a connection once.
struct PollConnection(Arc<Session>);

impl Task for PollConnection {
    type Output = ();

    async fn run(self, _cx: TaskContext) {
        let session = self.0;
        session.waiting.fetch_sub(1, Ordering::Relaxed);
        session.state.store(RUNNING, Ordering::Release);
        let waker = Waker::from(Arc::clone(&session));
        let ended = {
            let mut slot = session.future.lock().unwrap_or_else(PoisonError::into_inner);
            // Taken out for the poll: a future that panicked must not be polled again.
            match slot.take() {
                None => true,
                Some(mut future) => match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(()) => true,
                    Poll::Pending => {
                        *slot = Some(future);
                        false
                    }
                },
            }
        };
        if ended {
            return;
        }
        let idle = session.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_err() {
            session.state.store(QUEUED, Ordering::Release);
            session.submit();
        }
    }
}
