//! The setting `server`.

use std::{fmt, str::FromStr, sync::Arc};

use garenne_pool::ConfigError;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use super::{Server, connection_pool::ConnectionPool, worker_pool::WorkerPool};
use crate::{instruments::Instruments, limits::Limits};

/// The servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ServerKind {
    /// One task per connection, up to `max_connections`.
    #[default]
    ConnectionPool,
    /// An elastic worker pool that polls all connections.
    WorkerPool,
}

/// A name that is not a server's.
#[derive(Debug, Error)]
#[error("server {0:?} is unknown, expected worker-pool or connection-pool")]
pub struct UnknownServer(String);

impl ServerKind {
    /// All servers.
    pub const ALL: [Self; 2] = [Self::WorkerPool, Self::ConnectionPool];

    /// The name in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectionPool => "connection-pool",
            Self::WorkerPool => "worker-pool",
        }
    }

    /// Starts the server on the current runtime.
    ///
    /// # Errors
    /// The limits contradict each other.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self, limits: &Limits, instruments: &Instruments) -> Result<Arc<dyn Server>, ConfigError> {
        Ok(match self {
            Self::ConnectionPool => Arc::new(ConnectionPool::new(limits, instruments)),
            Self::WorkerPool => Arc::new(WorkerPool::start(limits, instruments)?),
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

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name.trim())
            .ok_or_else(|| UnknownServer(name.to_owned()))
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
