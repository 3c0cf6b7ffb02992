//! One fleet on one broker, as an operator reaches it.

use garenne_amqp::{Broker, BrokerError};
use garenne_common::{
    exit::{Exit, Failure},
    telemetry::metrics::Role,
};
use garenne_management::ManagementClient;
use garenne_protocol::topology::{BrokerVersion, Ladder, Names, Topology};
use lapin::Connection;

use crate::settings::ConsoleConfig;

/// One fleet as an operator reaches it.
#[derive(Debug)]
pub struct Operator {
    /// The settings.
    pub settings: ConsoleConfig,
    /// The broker.
    pub broker: Broker,
    /// The broker's management API, if it is configured.
    pub management: Option<ManagementClient>,
    /// The fleet's names.
    pub names: Names,
    /// The retry ladder's rungs.
    pub ladder: Ladder,
}

impl Operator {
    /// Reads the settings. Nothing connects yet.
    ///
    /// # Errors
    /// A URL that cannot be used.
    pub fn new(settings: ConsoleConfig) -> Result<Self, Failure> {
        let common = &settings.common;
        let broker = Broker::configured(common, "garenne")?;
        let management = common.management_url.as_ref().map(ManagementClient::new).transpose()?;
        let ladder = settings.retry.ladder().map_err(|error| Failure::new(Exit::Config, error))?;
        let names = Names::new(&common.prefix);
        Ok(Self { broker, management, names, ladder, settings })
    }

    /// Connects to the broker in one attempt, because a user waits for the result.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn connect(&self) -> Result<Connection, BrokerError> {
        self.broker.connect(Role::Operate).await
    }

    /// The topology for a broker of this version.
    pub fn topology(&self, version: BrokerVersion) -> Topology {
        Topology::new(&self.names, &self.settings.lanes.specs(), &self.ladder, version)
    }

    /// Closes a connection, so that the broker does not log it as lost. A failure is ignored.
    pub async fn leave(connection: Connection) {
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(%error, "failed to close the connection");
        }
    }
}
