//! Servers: how accepted connections are run.

mod active_guard;
mod connection_pool;
mod kind;
mod worker_pool;

use futures_util::future::BoxFuture;

use crate::connection::Connection;
pub use kind::{ServerKind, UnknownServer};

/// Runs accepted connections.
pub trait Server: Send + Sync + 'static {
    /// The value of the metrics' label `server`.
    fn name(&self) -> &'static str;

    /// Takes the connection, or returns it if the server is full.
    ///
    /// # Errors
    /// The connection itself.
    fn offer(&self, connection: Connection) -> Result<(), Connection>;

    /// Resolves when all connections have ended. No connection is offered after this call.
    fn drain(&self) -> BoxFuture<'_, ()>;
}
