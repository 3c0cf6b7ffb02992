//! The other end of a connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The subject of its certificate.
    pub(crate) device: Option<Arc<str>>,
    flags: Arc<Flags>,
}

/// The state of a connection, shared by all clones of its peer.
#[derive(Debug, Default)]
struct Flags {
    authenticated: AtomicBool,
    refused: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, device: None, flags: Arc::default() }
    }

    /// The same connection with the subject of its certificate.
    pub(crate) fn with_device(&self, device: Option<Arc<str>>) -> Self {
        Self { device, ..self.clone() }
    }

    /// Whether a request of this connection was authenticated, or no authentication is required.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.flags.authenticated.load(Ordering::Relaxed)
    }

    pub(super) fn set_authenticated(&self) {
        self.flags.authenticated.store(true, Ordering::Relaxed);
    }

    /// Set once a request was refused whose body may be unread.
    pub(crate) fn refused(&self) -> &Arc<AtomicBool> {
        &self.flags.refused
    }
}
