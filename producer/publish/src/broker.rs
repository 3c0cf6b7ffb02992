//! The broker: settings, topology and a connected publisher.

use std::time::Duration;

use garenne_amqp::{
    Broker, BrokerError, PublishError, Publisher, PublisherConfig,
    declare::{TopologyError, apply, ensure},
    retry_while_unavailable,
};
use garenne_common::{
    config::{Common, Invalid, Lanes, Retry},
    exit::{Exit, Failure, HasExit},
    telemetry::{Metrics, Traces, metrics::Role, traces::Service},
};
use garenne_protocol::topology::{BrokerVersion, Names, Topology};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::routes::{READING_KIND, Routes};

/// Settings of every program that publishes tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerSettings {
    /// Settings of all programs.
    #[serde(flatten)]
    pub common: Common,
    /// The lanes. Tasks of a kind that no lane's binding matches are refused.
    pub lanes: Lanes,
    /// The retry ladder; its queues are part of the topology.
    pub retry: Retry,
    /// How long the program waits for the broker when it starts.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
}

impl Default for BrokerSettings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            lanes: Lanes::default(),
            retry: Retry::default(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

impl BrokerSettings {
    /// Checks every setting. The error is the first invalid one.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.common.validate()?;
        self.lanes.validate(&self.common.prefix)?;
        self.retry.ladder().map(drop)
    }

    /// Names on the broker.
    pub fn names(&self) -> Names {
        Names::new(&self.common.prefix)
    }

    /// The kinds that the lanes take.
    pub fn routes(&self) -> Routes {
        let bindings = self.lanes.defined().flat_map(|(_, lane)| lane.task_bindings().to_vec()).collect();
        Routes { bindings, readings_are_sharded: self.lanes.spread(READING_KIND) }
    }

    /// The topology for a broker of this version.
    pub fn topology(&self, version: BrokerVersion) -> Topology {
        let ladder = self.retry.ladder().expect("validated with the settings");
        Topology::new(&self.names(), &self.lanes.specs(), &ladder, version)
    }

    /// Ensures the topology and connects the publisher. While the broker is unavailable, or refuses a login whose URL is
    /// read again from a file, retries until `connect_timeout` is spent. Fails if the broker cannot be reached in
    /// this time (exit code 69), denies access (77), or has an object of another type or with other arguments under
    /// one of the names.
    pub(crate) async fn wait_connected(&self, broker: &Broker, publisher: &Publisher) -> Result<(), Failure> {
        let connect = || async {
            self.ensure_topology(broker).await?;
            Ok::<_, StartError>(publisher.connect().await?)
        };
        let connected = retry_while_unavailable(self.connect_timeout, StartError::exit_code, connect).await;
        Ok(connected?)
    }

    /// A publisher that is not connected yet, and the broker that it connects to.
    pub(crate) fn publisher(
        &self,
        config: PublisherConfig,
        metrics: &Metrics,
    ) -> Result<(Broker, Publisher), Failure> {
        let broker = Broker::configured(&self.common, "garenne-producer")?;
        let publisher = Publisher::observed(broker.clone(), config, metrics.connection().clone());
        Ok((broker, publisher))
    }

    /// Ensures the topology, without a repetition.
    pub(crate) async fn ensure_topology(&self, broker: &Broker) -> Result<(), EnsureError> {
        let connection = broker.connect(Role::Operate).await?;
        let version = broker.version().await?;
        tracing::info!(broker = %broker.address(), %version, "connected");
        // Publishers need no streams. A broker may have none.
        ensure(&connection, &self.topology(version).without_streams()).await?;
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(%error, "failed to close the connection that declared the topology");
        }
        Ok(())
    }

    /// Declares the topology again, bindings included.
    pub(crate) async fn restore_topology(&self, broker: &Broker) -> Result<(), EnsureError> {
        let connection = broker.connect(Role::Operate).await?;
        let version = broker.version().await?;
        let restored = apply(&connection, &self.topology(version).without_streams()).await;
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(%error, "failed to close the connection that declared the topology");
        }
        Ok(restored?)
    }

    /// Starts the export of spans, if `otlp` is set. Spans carry `name` and `instance` as the service.
    pub fn traces(&self, name: &'static str, instance: String, metrics: &Metrics) -> Result<Traces, Invalid> {
        let service = Service { name, instance, version: env!("CARGO_PKG_VERSION") };
        Traces::start(&self.common.otlp, &service, metrics)
    }
}

/// Why the program could not start to publish.
#[derive(Debug, Error)]
enum StartError {
    #[error(transparent)]
    Topology(#[from] EnsureError),
    #[error(transparent)]
    Publisher(#[from] PublishError),
}

impl StartError {
    /// The exit code if the attempt was the last one. A login that was refused counts as an unavailable broker while
    /// its URL is read again from a file: the password there may be about to change.
    fn exit_code(&self) -> Exit {
        match self {
            Self::Topology(EnsureError::Connect(error)) | Self::Publisher(PublishError::Connect(error))
                if !error.is_final() =>
            {
                Exit::BrokerUnavailable
            }
            error => error.exit(),
        }
    }
}

impl HasExit for StartError {
    fn exit(&self) -> Exit {
        match self {
            Self::Topology(error) => error.exit(),
            Self::Publisher(error) => error.exit(),
        }
    }
}

/// Why the topology was not ensured.
#[derive(Debug, Error)]
pub(crate) enum EnsureError {
    #[error(transparent)]
    Connect(#[from] BrokerError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl HasExit for EnsureError {
    fn exit(&self) -> Exit {
        match self {
            Self::Connect(error) => error.exit(),
            Self::Topology(error) => error.exit(),
        }
    }
}
