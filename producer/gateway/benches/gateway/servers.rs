//! Servers that the gateway does not offer, to compare its own with.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use garenne_gateway::{Connection, Instruments, Limits, Server, ServerKind};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// Names of all servers that are compared.
pub(crate) const ALL: [&str; 4] = ["worker-pool", "connection-pool", Sequential::NAME, Unbounded::NAME];

/// Starts the server with this name on the current runtime.
pub(crate) fn start(name: &str, limits: &Limits, instruments: &Instruments) -> Arc<dyn Server> {
    match name {
        Sequential::NAME => Arc::new(Sequential::start(limits.max_waiting)),
        Unbounded::NAME => Arc::new(Unbounded::default()),
        name => {
            let kind: ServerKind = name.parse().expect("a server's name");
            kind.start(limits, instruments, &Handle::current()).expect("consistent limits")
        }
    }
}

/// Serves one connection after the other; the others wait in a queue.
pub(crate) struct Sequential {
    waiting: mpsc::Sender<(Connection, TaskTrackerToken)>,
    connections: TaskTracker,
}

impl Sequential {
    pub(crate) const NAME: &str = "sequential";

    fn start(max_waiting: usize) -> Self {
        let (waiting, mut next) = mpsc::channel::<(Connection, TaskTrackerToken)>(max_waiting);
        tokio::spawn(async move {
            while let Some((connection, _tracked)) = next.recv().await {
                connection.serve().await;
            }
        });
        Self { waiting, connections: TaskTracker::new() }
    }
}

impl Server for Sequential {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn offer(&self, connection: Connection) -> Result<(), Connection> {
        let queued = self.waiting.try_send((connection, self.connections.token()));
        queued.map_err(|full| full.into_inner().0)
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        self.connections.close();
        Box::pin(async { self.connections.wait().await })
    }
}

/// One task per connection, without a limit.
#[derive(Default)]
pub(crate) struct Unbounded {
    connections: TaskTracker,
}

impl Unbounded {
    const NAME: &str = "unbounded";
}

impl Server for Unbounded {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn offer(&self, connection: Connection) -> Result<(), Connection> {
        self.connections.spawn(connection.serve());
        Ok(())
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        self.connections.close();
        Box::pin(async { self.connections.wait().await })
    }
}
