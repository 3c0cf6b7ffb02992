//! Connects a publisher to the broker, ensures the topology, and keeps the publisher connected.

use std::{fmt::Display, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Broker, PublishError, Publisher, PublisherConfig};
use garenne_common::{
    exit::{Exit, Failure},
    supervise::{self, TaskHandle},
    telemetry::{Metrics, metrics::Role},
};
use garenne_protocol::task::NewTask;
use prometheus::IntGauge;
use tokio::{
    sync::watch,
    time::{interval, sleep, timeout},
};

use crate::{
    broker::BrokerSettings,
    task_publisher::{PUBLISH_SLOT_TIMEOUT, TaskPublisher},
};

/// How often a lost connection is opened again while no task needs it.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait after a failure that needs an operator, such as a wrong password.
const BROKEN_INTERVAL: Duration = Duration::from_secs(10);

/// How long a program waits for the broker when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstConnection {
    /// Until `connect_timeout` is spent. Then it fails.
    Required,
    /// For this time. Then it starts, and connects later: it has a spool.
    Optional(Duration),
}

impl FirstConnection {
    /// For a program that runs until it is stopped. With a spool, it does not wait.
    #[must_use]
    pub fn of_service(has_spool: bool) -> Self {
        if has_spool { Self::Optional(Duration::ZERO) } else { Self::Required }
    }
}

/// A publisher that is kept connected to the broker until it is closed.
pub struct BrokerLink {
    publisher: Publisher,
    connecting: TaskHandle<()>,
    /// Tasks may be published: the topology was ensured, or the broker has answered that this user cannot do that.
    is_settled: watch::Receiver<bool>,
}

impl BrokerLink {
    /// Connects to the broker and ensures the topology.
    ///
    /// # Errors
    /// The broker cannot be reached and is required, denies access, or has an object of another type or with other
    /// arguments under one of the names. If the program does not wait, these are logged and tried again.
    pub async fn open(
        broker: &BrokerSettings,
        config: PublisherConfig,
        metrics: &Metrics,
        first: FirstConnection,
    ) -> Result<Self, Failure> {
        let (endpoint, publisher) = broker.publisher(config, metrics)?;
        let connect = || broker.wait_connected(&endpoint, &publisher);
        let has_topology = match first {
            FirstConnection::Required => connect().await.map(|()| true)?,
            FirstConnection::Optional(Duration::ZERO) => false,
            FirstConnection::Optional(wait) => match timeout(wait, connect()).await {
                Ok(Err(failure)) if failure.exit != Exit::BrokerUnavailable => return Err(failure),
                Ok(Ok(())) => true,
                Ok(Err(_)) | Err(_) => {
                    tracing::info!(broker = %endpoint.address(), "broker not reachable");
                    false
                }
            },
        };
        let (settled, is_settled) = watch::channel(has_topology);
        let connector = Connector {
            broker: broker.clone(),
            endpoint,
            publisher: publisher.clone(),
            connected: metrics.connection().up(Role::Publish),
            has_topology,
            settled,
            reported: None,
        };
        let connecting =
            supervise::restarting("connect", connector, |it| it.stay_connected().boxed()).spawn();
        Ok(Self { publisher, connecting, is_settled })
    }

    /// The publisher. It connects at its first message, also before the topology is ensured.
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Publishes with `next` once the topology was ensured, or the broker has answered that this user cannot do that.
    /// Before, tasks would be returned, or go to the catch-all lane, while their own queues are declared. Until then
    /// each call waits for a publisher's usual time, and fails.
    #[must_use]
    pub fn after_topology(&self, next: Arc<dyn TaskPublisher>) -> Arc<dyn TaskPublisher> {
        self.gated(next, Some(PUBLISH_SLOT_TIMEOUT))
    }

    /// As [`BrokerLink::after_topology`], and waits without a limit, for the drain of a spool.
    #[must_use]
    pub fn drain_after_topology(&self, next: Arc<dyn TaskPublisher>) -> Arc<dyn TaskPublisher> {
        self.gated(next, None)
    }

    fn gated(&self, next: Arc<dyn TaskPublisher>, limit: Option<Duration>) -> Arc<dyn TaskPublisher> {
        let is_settled = self.is_settled.clone();
        // It never becomes false.
        if *is_settled.borrow() { next } else { Arc::new(AfterTopology { next, is_settled, limit }) }
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.connecting.abort();
        self.publisher.close().await;
    }
}

/// Publishes once the topology is settled.
struct AfterTopology {
    next: Arc<dyn TaskPublisher>,
    is_settled: watch::Receiver<bool>,
    /// How long a call waits.
    limit: Option<Duration>,
}

impl TaskPublisher for AfterTopology {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        if *self.is_settled.borrow() {
            return self.next.publish(tasks);
        }
        Box::pin(async move {
            let mut is_settled = self.is_settled.clone();
            // An error means that the link is closed: then publishing fails.
            let settled = async { drop(is_settled.wait_for(|settled| *settled).await) };
            match self.limit {
                None => settled.await,
                Some(limit) => timeout(limit, settled)
                    .await
                    .map_err(|_| PublishError::Busy { what: "connection", waited: limit })?,
            }
            self.next.publish(tasks).await
        })
    }
}

/// Opens the connection to the broker.
struct Connector {
    broker: BrokerSettings,
    endpoint: Broker,
    publisher: Publisher,
    /// 1 while the publishing connection is open.
    connected: IntGauge,
    /// The topology was ensured.
    has_topology: bool,
    settled: watch::Sender<bool>,
    /// Why the broker is not reachable, as it was logged last.
    reported: Option<String>,
}

impl Connector {
    /// Opens a lost connection again without waiting for a task: a process that is not ready gets no requests, and
    /// would not notice that the broker is back.
    async fn stay_connected(&mut self) {
        let mut tick = interval(RECONNECT_INTERVAL);
        loop {
            tick.tick().await;
            let is_broken = !self.has_topology && self.ensure_topology().await.is_err();
            if *self.settled.borrow() && self.connected.get() == 0 {
                match self.publisher.connect().await {
                    Ok(()) => self.reported = None,
                    Err(error) => self.report_away(&error),
                }
            }
            if is_broken {
                sleep(BROKEN_INTERVAL).await;
            }
        }
    }

    /// Ensures the topology, unless the broker is unavailable.
    ///
    /// # Errors
    /// An operator is needed.
    async fn ensure_topology(&mut self) -> Result<(), NeedsOperator> {
        let Err(error) = self.broker.ensure_topology(&self.endpoint).await else {
            self.has_topology = true;
            self.settled.send_replace(true);
            return Ok(());
        };
        if error.is_unavailable() {
            self.report_away(&error);
            return Ok(());
        }
        if error.is_answer() {
            tracing::error!(%error, "the topology is not ensured, tasks are published all the same");
            self.settled.send_replace(true);
        } else {
            tracing::error!(%error, "cannot use the broker, tasks are spooled");
        }
        Err(NeedsOperator)
    }

    /// Logs why the broker is not reachable, once until the reason changes.
    fn report_away(&mut self, error: &dyn Display) {
        let error = error.to_string();
        if self.reported.as_ref() != Some(&error) {
            tracing::info!(%error, "broker not reachable, retrying each second");
            self.reported = Some(error);
        }
    }
}

/// A failure that was logged and needs an operator.
struct NeedsOperator;

#[cfg(test)]
mod tests;
