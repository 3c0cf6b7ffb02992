//! One task per connection, a bounded number of them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_common::supervise;
use prometheus::IntGauge;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{Server, active_guard::ActiveGuard};
use crate::{connection::Connection, instruments::Instruments, limits::Limits};

const NAME: &str = "connection-pool";

/// Serves up to `max_connections` connections at once, each in a task of its own.
pub(super) struct ConnectionPool {
    permits: Arc<Semaphore>,
    connections: TaskTracker,
    active: IntGauge,
}

impl ConnectionPool {
    pub(super) fn new(limits: &Limits, instruments: &Instruments) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limits.max_connections)),
            connections: TaskTracker::new(),
            active: instruments.connections(NAME, "active"),
        }
    }
}

impl Server for ConnectionPool {
    fn name(&self) -> &'static str {
        NAME
    }

    fn offer(&self, connection: Connection) -> Result<(), Connection> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return Err(connection) };
        let active = ActiveGuard::new(&self.active);
        let serving = async move {
            connection.serve().await;
            drop((active, permit));
        };
        supervise::isolated("connection", serving).spawn_in(&self.connections).detach();
        Ok(())
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.connections.close();
            self.connections.wait().await;
        })
    }
}
