//! One fleet on one broker, as an operator reaches it.

use std::time::Duration;

use garenne_amqp::{Broker, BrokerError};
use garenne_common::{
    exit::{Exit, Failure},
    telemetry::metrics::Role,
};
use garenne_database::{DEFAULT_CONNECTIONS, Database, PostgresPool, Tables, schema};
use garenne_management::ManagementClient;
use garenne_protocol::topology::{BrokerVersion, Ladder, Names, Topology};
use lapin::Connection;
use tokio::time::timeout;

use crate::{settings::FleetSettings, waits};

/// How long a login that the broker refused is repeated while its URL is read again from a file.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for the broker's answer to the close of a connection.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an operator waits for a database that is away.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(10);

/// One fleet as an operator reaches it.
#[derive(Debug)]
pub struct Operator {
    /// The settings.
    pub settings: FleetSettings,
    /// The broker.
    pub broker: Broker,
    /// The broker's management API, if it is configured.
    pub management: Option<ManagementClient>,
    /// The fleet's names.
    pub names: Names,
    /// The retry ladder's rungs.
    pub ladder: Ladder,
    /// Whether nothing may be written to the broker: its user may have no right to write.
    pub read_only: bool,
}

impl Operator {
    /// Reads the settings. Nothing connects yet.
    pub fn new(settings: FleetSettings) -> Result<Self, Failure> {
        let common = &settings.common;
        let broker = Broker::configured(common, "garenne")?.with_login_timeout(LOGIN_TIMEOUT);
        let management = common.management_url.as_ref().map(ManagementClient::new).transpose()?;
        let ladder = settings.retry.ladder().map_err(|error| Failure::new(Exit::Config, error))?;
        let names = Names::new(&common.prefix);
        Ok(Self { broker, management, names, ladder, settings, read_only: false })
    }

    /// Connects to the broker in one attempt, because a user waits for the result.
    pub async fn connect(&self) -> Result<Connection, BrokerError> {
        waits::begin(format!("a connection to the broker at {}", self.broker.address()));
        let connected = self.broker.connect(Role::Operate).await;
        waits::begin(format!("an answer of the broker at {}", self.broker.address()));
        connected
    }

    /// The workers' database. Nothing connects yet.
    pub fn database(&self) -> Result<(PostgresPool, Tables), Failure> {
        self.database_with(DEFAULT_CONNECTIONS)
    }

    /// As [`database`](Self::database), with a pool of up to this many connections.
    pub fn database_with(&self, connections: usize) -> Result<(PostgresPool, Tables), Failure> {
        let invalid = |problem: String| Failure::new(Exit::Config, problem);
        let Some(url) = self.settings.postgres_url.clone() else {
            let needed = "--postgres-url is needed, such as postgres://user:password@host/database";
            return Err(invalid(needed.to_owned()));
        };
        let database = Database::new(url, self.settings.postgres_tls.clone()).map_err(invalid)?;
        Ok((PostgresPool::with_connections(database, connections), Tables::new(&self.settings.common.prefix)))
    }

    /// The workers' database, with tables of the version that this program needs.
    pub async fn tables(&self) -> Result<(PostgresPool, Tables), Failure> {
        self.tables_with(DEFAULT_CONNECTIONS).await
    }

    /// As [`tables`](Self::tables), with a pool of up to this many connections.
    pub async fn tables_with(&self, connections: usize) -> Result<(PostgresPool, Tables), Failure> {
        let (pool, tables) = self.database_with(connections)?;
        waits::begin(format!("an answer of the database at {}", pool.address()));
        schema::prepare(&pool, &tables, false, DATABASE_TIMEOUT).await?;
        waits::progress();
        Ok((pool, tables))
    }

    /// The topology for a broker of this version.
    pub fn topology(&self, version: BrokerVersion) -> Topology {
        Topology::new(&self.names, &self.settings.lanes.specs(), &self.ladder, version)
    }

    /// Closes a connection, so that the broker does not log it as lost. A failure is ignored, and so is a broker that does
    /// not answer, as while an alarm blocks publishers.
    pub async fn leave(connection: Connection) {
        match timeout(LEAVE_TIMEOUT, connection.close(200, "done".into())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "failed to close the connection"),
            Err(_) => tracing::debug!("the broker did not answer the close of the connection"),
        }
    }
}
