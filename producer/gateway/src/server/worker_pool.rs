//! An elastic pool of workers that take turns at connections.
//!
//! A worker polls a connection until it would have to wait and then lets go of it: whatever the
//! connection waits for (bytes, a confirm, a deadline) puts it back into the pool's queue. So an idle
//! connection holds no worker, and neither does one that waits for the broker.

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

use super::Server;
use crate::{connection::Connection, instruments::Instruments, limits::Limits};

const NAME: &str = "worker-pool";

/// How long a worker over the minimum stays without work.
const IDLE: Duration = Duration::from_secs(10);

pub(super) struct WorkerPool {
    pool: Pool<Turn, ()>,
    places: Arc<Semaphore>,
    /// Turns that wait for a worker.
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
    sessions: TaskTracker,
    active: IntGauge,
}

impl WorkerPool {
    /// # Errors
    /// Sizes that cannot work together.
    pub(super) fn start(limits: &Limits, instruments: &Instruments) -> Result<Self, ConfigError> {
        let config = PoolConfig {
            name: "gateway".to_owned(),
            // Each connection waits or runs at most once, so that a wake-up is never refused.
            queue: limits.max_connections.max(limits.workers.max),
            workers: limits.workers.min..=limits.workers.max,
            idle_timeout: IDLE,
            default_deadline: Duration::from_secs(3600),
            grace: Duration::from_secs(1),
        };
        let pool = Pool::start(config, tokio::runtime::Handle::current())?;
        Ok(Self {
            pool,
            places: Arc::new(Semaphore::new(limits.max_connections)),
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
        // A queue this long is overload: a new connection would only make everybody slower.
        if self.waiting.load(Ordering::Relaxed) >= self.max_waiting {
            return Err(connection);
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Err(connection) };
        self.active.inc();
        let session = Arc::new(Session {
            // Turns are short and bounded by what is there to read; tokio's own budget counts for
            // the worker, who would never see it renewed.
            future: Mutex::new(Some(Box::pin(tokio::task::unconstrained(connection.serve())))),
            state: AtomicU8::new(IDLE_STATE),
            pool: self.pool.clone(),
            waiting: Arc::clone(&self.waiting),
            _place: place,
            _counted: Counted(self.active.clone()),
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

/// Nothing to do.
const IDLE_STATE: u8 = 0;
/// In the pool's queue.
const QUEUED: u8 = 1;
/// A worker is at it.
const RUNNING: u8 = 2;
/// A worker is at it, and something more happened meanwhile.
const WOKEN: u8 = 3;

/// A connection between two turns.
struct Session {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    state: AtomicU8,
    pool: Pool<Turn, ()>,
    waiting: Arc<AtomicUsize>,
    _place: OwnedSemaphorePermit,
    _counted: Counted,
    _tracked: TaskTrackerToken,
}

struct Counted(IntGauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Session {
    fn submit(self: Arc<Self>) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let pool = self.pool.clone();
        if pool.submit_detached(Spec::short("connection"), Turn(self), ()).is_err() {
            // Only a pool that is closing refuses; the connection is dropped with its turn.
            tracing::debug!("connection dropped: the pool is closing");
        }
    }
}

impl Wake for Session {
    fn wake(self: Arc<Self>) {
        let next = |state| match state {
            IDLE_STATE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE_STATE) {
            self.submit();
        }
    }
}

/// One turn of a worker at a connection.
struct Turn(Arc<Session>);

impl Task for Turn {
    type Output = ();

    async fn run(self, _cx: TaskContext) {
        let session = self.0;
        session.waiting.fetch_sub(1, Ordering::Relaxed);
        session.state.store(RUNNING, Ordering::Release);
        let waker = Waker::from(Arc::clone(&session));
        let ended = {
            let mut slot = session.future.lock().unwrap_or_else(PoisonError::into_inner);
            // Taken out while it is polled: one that panics is gone and not polled again.
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
        let idle = session.state.compare_exchange(RUNNING, IDLE_STATE, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_err() {
            session.state.store(QUEUED, Ordering::Release);
            session.submit();
        }
    }
}
