//! A task per connection, and a bound on their number.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use prometheus::IntGauge;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{Connection, Instruments, Server};

/// Serves at most so many connections at once. An idle one costs its task and no worker.
pub(super) struct ConnectionPool {
    name: &'static str,
    places: Arc<Semaphore>,
    connections: TaskTracker,
    active: IntGauge,
}

impl ConnectionPool {
    pub(super) fn new(name: &'static str, places: usize, instruments: &Instruments) -> Self {
        Self {
            name,
            places: Arc::new(Semaphore::new(places)),
            connections: TaskTracker::new(),
            active: instruments.connections(name, "active"),
        }
    }
}

impl Server for ConnectionPool {
    fn name(&self) -> &'static str {
        self.name
    }

    fn offer(&self, connection: Connection) -> Result<(), Connection> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Err(connection) };
        let active = self.active.clone();
        active.inc();
        self.connections.spawn(async move {
            connection.serve().await;
            active.dec();
            drop(place);
        });
        Ok(())
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.connections.close();
            self.connections.wait().await;
        })
    }
}
