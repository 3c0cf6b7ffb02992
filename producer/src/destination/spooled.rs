//! A connection to the broker with a spool for tasks that it does not confirm in time.

use std::sync::Arc;

use garenne_amqp::PublisherConfig;
use garenne_common::{
    exit::Failure,
    supervise::{self, TaskHandle},
};
use garenne_gateway::{
    BrokerSettings, SpoolSettings,
    task_publisher::{SpoolDrain, SpoolingPublisher},
};
use garenne_spool::Spool;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::broker::BrokerConnection;
use crate::progress::Progress;

/// Records that a run left in its spool, for its summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SpoolCounts {
    /// Records that this run stored in the spool; `published` and `delivered` include them.
    pub(crate) spooled: u64,
    /// Records that wait in the spool at the end, also of earlier runs.
    pub(crate) waiting: u64,
}

impl SpoolCounts {
    /// Says what is not in the broker yet.
    pub(crate) fn report(&self, progress: &Progress) {
        let Self { spooled, waiting } = self;
        if *waiting > 0 {
            progress.print(format_args!(
                "{spooled} spooled; {waiting} wait in the spool, `spool drain` or a later run publishes them"
            ));
        }
    }
}

/// Publishes tasks to the broker, with a spool if there is one.
pub(crate) struct SpooledConnection {
    /// Publishes or spools the tasks.
    pub(crate) tasks: Arc<SpoolingPublisher>,
    broker: BrokerConnection,
    spool: Option<OpenSpool>,
}

struct OpenSpool {
    spool: Spool,
    draining: TaskHandle<SpoolDrain>,
    stop: CancellationToken,
}

impl SpooledConnection {
    /// Connects to the broker, and opens the spool if the settings have one, which is drained from now on.
    ///
    /// # Errors
    /// The broker is unavailable and there is no spool, the broker denies access, or the spool cannot be opened.
    pub(crate) async fn open(
        settings: &BrokerSettings,
        config: PublisherConfig,
        spool: &SpoolSettings,
    ) -> Result<Self, Failure> {
        let Some(opened) = spool.open().await? else {
            let broker = BrokerConnection::open(settings, config).await?;
            let tasks = Arc::new(SpoolingPublisher::direct(Arc::clone(&broker.tasks)));
            return Ok(Self { tasks, broker, spool: None });
        };
        let wait = spool.spool_after;
        let broker = BrokerConnection::open_if_available(settings, config, wait).await?;
        let tasks = SpoolingPublisher::with_spool(Arc::clone(&broker.tasks), opened.clone(), wait);
        let (stop, mut drain) =
            (CancellationToken::new(), spool.drain(opened.clone(), Arc::clone(&broker.tasks)));
        let stopped = stop.clone();
        let draining = async move {
            drain.run(stopped).await;
            drain
        };
        let draining = supervise::isolated("drain-spool", draining).spawn();
        Ok(Self { tasks: Arc::new(tasks), broker, spool: Some(OpenSpool { spool: opened, draining, stop }) })
    }

    /// Drains the spool until it is empty or the broker does not confirm, and closes the connection.
    pub(crate) async fn close(self) -> Option<SpoolCounts> {
        let Self { tasks, broker, spool } = self;
        drop(tasks);
        let mut counts = None;
        if let Some(OpenSpool { spool, draining, stop }) = spool {
            stop.cancel();
            // A panic was logged where it happened; the spool keeps its records.
            if let Ok(mut drain) = draining.await {
                while let Ok(1..) = drain.next_batch().await {}
            }
            let status = spool.status().borrow().clone();
            counts = Some(SpoolCounts { spooled: status.accepted, waiting: status.records() });
            spool.close().await;
        }
        broker.close().await;
        counts
    }
}
