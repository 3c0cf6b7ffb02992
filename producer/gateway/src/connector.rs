//! Keeps a publisher connected to the broker.

use std::time::Duration;

use garenne_amqp::{Broker, Publisher};
use garenne_common::exit::{Exit, Failure};
use prometheus::IntGauge;

use crate::broker::BrokerSettings;

/// How often a lost connection is opened again while no task needs it.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait after a failure that needs an operator, such as a wrong password.
const BROKEN_INTERVAL: Duration = Duration::from_secs(10);

/// Opens the connection to the broker.
pub struct Connector {
    /// The broker's settings.
    pub broker: BrokerSettings,
    /// The broker that the publisher connects to.
    pub endpoint: Broker,
    /// Is kept connected.
    pub publisher: Publisher,
    /// 1 while the publishing connection is open.
    pub connected: IntGauge,
    /// The topology was ensured. A process with a spool starts before.
    pub has_topology: bool,
}

impl Connector {
    /// Opens a lost connection again without waiting for a task: a process that is not ready gets no requests, and
    /// would not notice that the broker is back.
    pub async fn stay_connected(&mut self) {
        let mut tick = tokio::time::interval(RECONNECT_INTERVAL);
        loop {
            tick.tick().await;
            if !self.has_topology {
                match self.broker.connect_once(&self.endpoint, &self.publisher).await {
                    Ok(()) => self.has_topology = true,
                    Err(Failure { exit: Exit::BrokerUnavailable, .. }) => {
                        tracing::info!("broker not reachable, tasks are spooled");
                    }
                    Err(failure) => {
                        tracing::error!(%failure, "cannot use the broker, tasks are spooled");
                        tokio::time::sleep(BROKEN_INTERVAL).await;
                    }
                }
            } else if self.connected.get() == 0
                && let Err(error) = self.publisher.connect().await
            {
                tracing::info!(%error, "broker not reachable, retrying");
            }
        }
    }
}
