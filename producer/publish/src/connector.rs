//! Connects a publisher to the broker, ensures the topology, and keeps the publisher connected.

use std::{fmt::Display, time::Duration};

use futures_util::FutureExt;
use garenne_amqp::{Broker, BrokerError, PublishError, Publisher, PublisherConfig, declare::TopologyError};
use garenne_common::{
    exit::{Exit, Failure, HasExit},
    supervise::{self, TaskHandle},
    telemetry::{Metrics, metrics::Role},
};
use prometheus::IntGauge;
use tokio::{
    sync::watch,
    time::{interval, sleep, timeout},
};

use crate::broker::{BrokerSettings, EnsureError};

/// How often a lost connection is opened again while no task needs it.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after an attempt to declare again what messages are routed by.
const RESTORE_INTERVAL: Duration = Duration::from_secs(4);

/// How long to wait after a failure that needs an operator, such as a wrong password.
const BROKEN_INTERVAL: Duration = Duration::from_secs(10);

/// Whether tasks may be published.
#[derive(Debug)]
enum TopologyState {
    /// It is being ensured.
    Ensuring,
    /// The last attempt failed: the broker is not reachable or refuses the connection.
    Away(BrokerError),
    /// It was ensured, or the broker has answered that this user cannot do that. It stays so.
    Declared,
}

impl TopologyState {
    fn is_declared(&self) -> bool {
        matches!(self, Self::Declared)
    }
}

/// Holds tasks back until the topology was ensured, or the broker has answered that this user cannot do that. Before,
/// tasks would be returned, or go to the catch-all lane, while their own queues are declared.
#[derive(Clone)]
pub(crate) struct TopologyGate {
    state: watch::Receiver<TopologyState>,
    /// How long a call waits, which also fails at once while the broker is away. `None` for a drain, which waits without a
    /// limit.
    limit: Option<Duration>,
}

impl TopologyGate {
    /// A gate that holds nothing back.
    pub(crate) fn open() -> Self {
        Self { state: watch::channel(TopologyState::Declared).1, limit: None }
    }

    /// The same gate for calls that wait without a limit.
    pub(crate) fn without_limit(&self) -> Self {
        Self { limit: None, ..self.clone() }
    }

    /// Resolves when tasks may be sent, or the connector has ended: then sending fails.
    pub(crate) async fn wait(&self) -> Result<(), PublishError> {
        if self.state.borrow().is_declared() {
            return Ok(());
        }
        let mut state = self.state.clone();
        let Some(limit) = self.limit else {
            drop(state.wait_for(TopologyState::is_declared).await);
            return Ok(());
        };
        let known = state.wait_for(|state| !matches!(state, TopologyState::Ensuring));
        match timeout(limit, known).await {
            Err(_) => Err(PublishError::Busy { what: "connection", waited: limit }),
            Ok(known) => match known.as_deref() {
                Ok(TopologyState::Away(error)) => Err(PublishError::Connect(error.clone())),
                _ => Ok(()),
            },
        }
    }
}

/// Connects to the broker and ensures the topology, within `connect_timeout` if `wait` is `None`. Otherwise this takes at
/// most `wait`, and connecting goes on: errors are logged and tried again. The publisher also connects at its first
/// message.
pub(crate) async fn connect(
    broker: &BrokerSettings,
    config: PublisherConfig,
    metrics: &Metrics,
    wait: Option<Duration>,
) -> Result<(Publisher, TopologyGate, TaskHandle<()>), Failure> {
    let limit = Some(config.acquire_timeout);
    let (endpoint, publisher) = broker.publisher(config, metrics)?;
    let connect = || broker.wait_connected(&endpoint, &publisher);
    let has_topology = match wait {
        None => connect().await.map(|()| true)?,
        Some(Duration::ZERO) => false,
        Some(wait) => match timeout(wait, connect()).await {
            Ok(Err(failure)) if failure.exit != Exit::BrokerUnavailable => return Err(failure),
            Ok(Ok(())) => true,
            Ok(Err(_)) | Err(_) => {
                tracing::info!(broker = %endpoint.address(), "broker not reachable");
                false
            }
        },
    };
    let state = if has_topology { TopologyState::Declared } else { TopologyState::Ensuring };
    let (state, gate) = watch::channel(state);
    let connector = Connector {
        broker: broker.clone(),
        endpoint,
        publisher: publisher.clone(),
        connected: metrics.connection().up(Role::Publish),
        has_topology,
        state,
        reported: None,
    };
    let connecting = supervise::restarting("connect", connector, |it| it.stay_connected().boxed()).spawn();
    Ok((publisher, TopologyGate { state: gate, limit }, connecting))
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
            let is_unrouted = self.publisher.route_problem().is_some() && self.publisher.denied().is_none();
            if self.has_topology && is_unrouted {
                self.restore_routes().await;
            }
            if self.state.borrow().is_declared() && self.connected.get() == 0 {
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
    async fn ensure_topology(&mut self) -> Result<(), NeedsOperator> {
        let Err(error) = self.broker.ensure_topology(&self.endpoint).await else {
            self.has_topology = true;
            self.state.send_replace(TopologyState::Declared);
            return Ok(());
        };
        let is_unavailable = error.exit() == Exit::BrokerUnavailable;
        let away = match error {
            EnsureError::Connect(error) => error,
            EnsureError::Topology(TopologyError::Broker(error)) => self.endpoint.explain(&error),
            EnsureError::Topology(error) => {
                tracing::error!(%error, "the topology is not ensured, tasks are published all the same");
                self.state.send_replace(TopologyState::Declared);
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
            let is_declared = state.is_declared();
            if !is_declared {
                *state = TopologyState::Away(away);
            }
            !is_declared
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
