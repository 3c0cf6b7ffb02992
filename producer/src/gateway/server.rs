//! Who runs a connection: servers that differ in nothing else.

use std::{fmt, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use garenne_pool::ConfigError;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use super::{connection::Connection, instruments::Instruments, limits::Limits};

mod connection_pool;
mod sequential;
mod worker_pool;

use connection_pool::ConnectionPool;
use sequential::Sequential;
use worker_pool::WorkerPool;

/// Runs accepted connections.
pub trait Server: Send + Sync + 'static {
    /// The label `server` of the metrics.
    fn name(&self) -> &'static str;

    /// Takes the connection, or hands it back when there is no place for it.
    ///
    /// # Errors
    /// The connection itself.
    fn offer(&self, connection: Connection) -> Result<(), Connection>;

    /// Resolves once every connection has ended; no more are offered.
    fn drain(&self) -> BoxFuture<'_, ()>;
}

/// The servers to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ServerKind {
    /// A task per connection, a bounded number of them.
    #[default]
    ConnectionPool,
    /// An elastic pool of workers that take turns at the connections.
    WorkerPool,
    /// One connection after the other; for comparison.
    Sequential,
    /// A task per connection, as many as come; for comparison.
    Unbounded,
}

/// A word that names no server.
#[derive(Debug, Error)]
#[error("server {0:?} is unknown, expected worker-pool, connection-pool, sequential or unbounded")]
pub struct UnknownServer(String);

impl ServerKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::WorkerPool, Self::ConnectionPool, Self::Sequential, Self::Unbounded];

    /// The setting's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectionPool => "connection-pool",
            Self::WorkerPool => "worker-pool",
            Self::Sequential => "sequential",
            Self::Unbounded => "unbounded",
        }
    }

    /// Starts it. Needs to be called on a runtime.
    ///
    /// # Errors
    /// Limits that cannot work together.
    pub fn start(self, limits: &Limits, instruments: &Instruments) -> Result<Arc<dyn Server>, ConfigError> {
        let connection_pool = |places| ConnectionPool::new(self.as_str(), places, instruments);
        Ok(match self {
            Self::ConnectionPool => Arc::new(connection_pool(limits.max_connections)),
            Self::Unbounded => Arc::new(connection_pool(tokio::sync::Semaphore::MAX_PERMITS)),
            Self::WorkerPool => Arc::new(WorkerPool::start(limits, instruments)?),
            Self::Sequential => Arc::new(Sequential::start(limits, instruments)),
        })
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ServerKind {
    type Err = UnknownServer;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == word.trim())
            .ok_or_else(|| UnknownServer(word.to_owned()))
    }
}

impl Serialize for ServerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ServerKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
