//! One connection after the other; the rest wait.

use futures_util::future::BoxFuture;
use prometheus::IntGauge;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::{Connection, Instruments, Limits, Server};

const NAME: &str = "sequential";

/// Serves each connection to its end before the next one's first byte is read.
pub(super) struct Sequential {
    waiting: mpsc::Sender<Connection>,
    connections: TaskTracker,
    active: IntGauge,
}

impl Sequential {
    pub(super) fn start(limits: &Limits, instruments: &Instruments) -> Self {
        let (waiting, mut next) = mpsc::channel::<Connection>(limits.max_waiting.max(1));
        let active = instruments.connections(NAME, "active");
        let (connections, counted) = (TaskTracker::new(), active.clone());
        tokio::spawn(async move {
            while let Some(connection) = next.recv().await {
                connection.serve().await;
                counted.dec();
            }
        });
        Self { waiting, connections, active }
    }
}

impl Server for Sequential {
    fn name(&self) -> &'static str {
        NAME
    }

    fn offer(&self, mut connection: Connection) -> Result<(), Connection> {
        connection.tracked = Some(self.connections.token());
        self.active.inc();
        self.waiting.try_send(connection).map_err(|refused| {
            self.active.dec();
            let mut connection = refused.into_inner();
            connection.tracked = None;
            connection
        })
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.connections.close();
            self.connections.wait().await;
        })
    }
}
