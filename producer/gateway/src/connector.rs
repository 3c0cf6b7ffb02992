//! Connects a publisher to the broker, ensures the topology, and keeps the publisher connected.

use std::{fmt::Display, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::{Broker, BrokerError, PublishError, Publisher, PublisherConfig, declare::TopologyError};
use garenne_common::{
    exit::{Exit, Failure, HasExit},
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
    broker::{BrokerSettings, EnsureError},
    task_publisher::TaskPublisher,
};

/// How often a lost connection is opened again while no task needs it.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after an attempt to declare again what messages are routed by.
const RESTORE_INTERVAL: Duration = Duration::from_secs(4);

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
    topology: watch::Receiver<TopologyState>,
    /// How long a message waits for the connection.
    acquire_timeout: Duration,
}

/// Whether tasks may be published.
#[derive(Debug)]
enum TopologyState {
    /// It is being ensured.
    Ensuring,
    /// The last attempt failed: the broker is not reachable or refuses the connection.
    Away(BrokerError),
    /// It was ensured, or the broker has answered that this user cannot do that. It stays so.
    Settled,
}

impl TopologyState {
    fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }
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
        let acquire_timeout = config.acquire_timeout;
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
        let state = if has_topology { TopologyState::Settled } else { TopologyState::Ensuring };
        let (state, topology) = watch::channel(state);
        let connector = Connector {
            broker: broker.clone(),
            endpoint,
            publisher: publisher.clone(),
            connected: metrics.connection().up(Role::Publish),
            has_topology,
            state,
            reported: None,
        };
        let connecting =
            supervise::restarting("connect", connector, |it| it.stay_connected().boxed()).spawn();
        Ok(Self { publisher, connecting, topology, acquire_timeout })
    }

    /// The publisher. It connects at its first message, also before the topology is ensured.
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Publishes with `next` once the topology was ensured, or the broker has answered that this user cannot do that.
    /// Before, tasks would be returned, or go to the catch-all lane, while their own queues are declared. A
    /// call waits for as long as it would wait for a connection, and fails at once while the broker is away.
    #[must_use]
    pub fn after_topology(&self, next: Arc<dyn TaskPublisher>) -> Arc<dyn TaskPublisher> {
        self.gated(next, Some(self.acquire_timeout))
    }

    /// As [`BrokerLink::after_topology`], and waits without a limit, for the drain of a spool.
    #[must_use]
    pub fn drain_after_topology(&self, next: Arc<dyn TaskPublisher>) -> Arc<dyn TaskPublisher> {
        self.gated(next, None)
    }

    fn gated(&self, next: Arc<dyn TaskPublisher>, limit: Option<Duration>) -> Arc<dyn TaskPublisher> {
        let topology = self.topology.clone();
        if topology.borrow().is_settled() { next } else { Arc::new(AfterTopology { next, topology, limit }) }
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
    topology: watch::Receiver<TopologyState>,
    /// How long a call waits; `None` for a drain, which also waits while the broker is away.
    limit: Option<Duration>,
}

impl AfterTopology {
    /// Resolves when tasks may be published, or the link is closed: then publishing fails.
    async fn settled(&self) -> Result<(), PublishError> {
        let mut topology = self.topology.clone();
        let Some(limit) = self.limit else {
            drop(topology.wait_for(TopologyState::is_settled).await);
            return Ok(());
        };
        let known = topology.wait_for(|state| !matches!(state, TopologyState::Ensuring));
        match timeout(limit, known).await {
            Err(_) => Err(PublishError::Busy { what: "connection", waited: limit }),
            Ok(known) => match known.as_deref() {
                Ok(TopologyState::Away(error)) => Err(PublishError::Connect(error.clone())),
                _ => Ok(()),
            },
        }
    }
}

impl TaskPublisher for AfterTopology {
    fn publish(&self, tasks: Vec<NewTask>) -> BoxFuture<'_, Result<(), PublishError>> {
        if self.topology.borrow().is_settled() {
            return self.next.publish(tasks);
        }
        Box::pin(async move {
            self.settled().await?;
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
    state: watch::Sender<TopologyState>,
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
            if self.has_topology && self.publisher.route_problem().is_some() {
                self.restore_routes().await;
            }
            if self.state.borrow().is_settled() && self.connected.get() == 0 {
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

    /// Declares an exchange that is gone, or bindings that are, as far as the user's rights allow.
    async fn restore_routes(&self) {
        match self.broker.restore_topology(&self.endpoint).await {
            Ok(()) => self.publisher.forget_route_problem(),
            Err(error) => tracing::debug!(%error, "cannot declare what messages are routed by"),
        }
        sleep(RESTORE_INTERVAL).await;
    }

    /// Ensures the topology, unless the broker is unavailable.
    ///
    /// # Errors
    /// An operator is needed.
    async fn ensure_topology(&mut self) -> Result<(), NeedsOperator> {
        let Err(error) = self.broker.ensure_topology(&self.endpoint).await else {
            self.has_topology = true;
            self.state.send_replace(TopologyState::Settled);
            return Ok(());
        };
        let is_unavailable = error.exit() == Exit::BrokerUnavailable;
        let away = match error {
            EnsureError::Connect(error) => error,
            EnsureError::Topology(TopologyError::Broker(error)) => self.endpoint.explain(&error),
            EnsureError::Topology(error) => {
                tracing::error!(%error, "the topology is not ensured, tasks are published all the same");
                self.state.send_replace(TopologyState::Settled);
                return Err(NeedsOperator);
            }
        };
        if is_unavailable {
            self.report_away(&away);
        } else {
            tracing::error!(error = %away, "cannot use the broker, tasks are spooled");
        }
        // The broker may have answered before.
        self.state.send_if_modified(|state| {
            let is_settled = state.is_settled();
            if !is_settled {
                *state = TopologyState::Away(away);
            }
            !is_settled
        });
        if is_unavailable { Ok(()) } else { Err(NeedsOperator) }
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
