//! Servers: how accepted connections are run.

mod worker_pool;

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use garenne_common::supervise;
use garenne_pool::ConfigError;
use prometheus::IntGauge;
use scopeguard::guard;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};
use tokio::{runtime::Handle, sync::Semaphore};

use crate::{connection::Connection, instruments::Instruments, limits::Limits};
use worker_pool::WorkerPool;

/// Runs accepted connections.
pub trait Server: Send + Sync + 'static {
    /// The value of the metrics' label `server`.
    fn name(&self) -> &'static str;

    /// Takes the connection, or returns it if the server is full.
    fn offer(&self, connection: Connection) -> Result<(), Connection>;

    /// Resolves when all connections have ended. No connection is offered after this call.
    fn drain(&self) -> BoxFuture<'_, ()>;
}

/// The setting `server`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, Display, EnumString, IntoStaticStr, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ServerKind {
    /// An elastic worker pool that polls all connections.
    WorkerPool,
    /// One task per connection.
    #[default]
    ConnectionPool,
}

impl ServerKind {
    /// The name in the settings.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Starts the server, which polls connections on `runtime` if it has workers.
    pub fn start(
        self,
        limits: &Limits,
        instruments: &Instruments,
        runtime: &Handle,
    ) -> Result<Arc<dyn Server>, ConfigError> {
        let workers = match self {
            Self::WorkerPool => Some(WorkerPool::start(limits, runtime.clone())?),
            Self::ConnectionPool => None,
        };
        let max_connections = u32::try_from(limits.max_connections).unwrap_or(u32::MAX);
        let permits = Arc::new(Semaphore::new(max_connections as usize));
        let active = instruments.connections(self.as_str(), "active");
        Ok(Arc::new(BoundedServer { kind: self, workers, permits, max_connections, active }))
    }
}

/// Serves up to `max_connections` connections at once.
struct BoundedServer {
    kind: ServerKind,
    /// Polls the connections. Without it each has a task of its own.
    workers: Option<WorkerPool>,
    permits: Arc<Semaphore>,
    max_connections: u32,
    active: IntGauge,
}

impl Server for BoundedServer {
    fn name(&self) -> &'static str {
        self.kind.as_str()
    }

    fn offer(&self, connection: Connection) -> Result<(), Connection> {
        if self.workers.as_ref().is_some_and(WorkerPool::is_overloaded) {
            return Err(connection);
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return Err(connection) };
        self.active.inc();
        // Also if serving the connection panics.
        let active = guard((self.active.clone(), permit), |(active, _permit)| active.dec());
        let serving = async move {
            connection.serve().await;
            drop(active);
        };
        match &self.workers {
            Some(workers) => workers.serve(serving),
            None => {
                supervise::isolated("connection", serving).spawn().detach();
            }
        }
        Ok(())
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        self.permits.acquire_many(self.max_connections).map(drop).boxed()
    }
}
