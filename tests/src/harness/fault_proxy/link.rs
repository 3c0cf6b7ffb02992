//! The state that a fault proxy and its connections share.

use std::{
    fmt, io,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::{net::TcpStream, sync::watch};

use super::server_filter::ServerFilter;

/// How the proxy treats connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Bytes pass.
    Up,
    /// Connections stay open, and no byte passes in either direction.
    Stalled,
    /// Open connections and new ones are reset.
    Cut,
}

/// Makes the filter of each new connection.
pub(super) type NewFilter = Box<dyn Fn() -> Box<dyn ServerFilter> + Send + Sync>;

/// The state that the proxy and its connections share.
pub(super) struct Link {
    servers: Vec<String>,
    /// The server that the next connection tries first.
    next: AtomicUsize,
    pub(super) new_filter: Option<NewFilter>,
    pub(super) state: watch::Sender<LinkState>,
    /// Incremented to reset the connections that are open now.
    pub(super) generation: watch::Sender<u64>,
    pub(super) open: AtomicUsize,
    pub(super) refused: AtomicUsize,
    pub(super) pauses: AtomicUsize,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("servers", &self.servers)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(servers: Vec<String>, new_filter: Option<NewFilter>) -> Self {
        Self {
            servers,
            next: AtomicUsize::new(0),
            new_filter,
            state: watch::Sender::new(LinkState::Up),
            generation: watch::Sender::new(0),
            open: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            pauses: AtomicUsize::new(0),
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        *self.state.borrow() == LinkState::Cut
    }

    /// Connects to the next server that accepts a connection.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut last_error = io::ErrorKind::NotFound.into();
        for offset in 0..self.servers.len() {
            match TcpStream::connect(&self.servers[(first + offset) % self.servers.len()]).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}
