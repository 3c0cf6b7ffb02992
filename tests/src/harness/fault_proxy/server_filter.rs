//! Faults in what a server sends, at chosen bytes.

use std::time::Duration;

/// Decides what happens to the bytes that a server sends through a [`FaultProxy`](super::FaultProxy). Each connection
/// has a filter of its own.
pub trait ServerFilter: Send + 'static {
    /// Returns what to do after these bytes were received, in order. A filter may keep bytes for a later call; they are
    /// lost if the server closes the connection before.
    fn filter(&mut self, received: &[u8]) -> Vec<FilterAction>;
}

/// The next step of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// These bytes are sent to the client.
    Forward(Vec<u8>),
    /// Nothing is sent to the client for this long.
    Pause(Duration),
    /// All connections of the proxy are reset, and new ones until [`FaultProxy::heal`](super::FaultProxy::heal).
    Cut,
}
