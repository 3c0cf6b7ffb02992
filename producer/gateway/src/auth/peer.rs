//! The other end of a connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use garenne_protocol::task::TraceContext;

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
    refused: AtomicBool,
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

    /// Whether a request was refused whose body may be unread.
    pub(crate) fn is_refused(&self) -> bool {
        self.flags.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn set_refused(&self) {
        self.flags.refused.store(true, Ordering::Relaxed);
    }

    /// Writes a refusal to the audit log: the peer, the protocol and the refusal's code. Never the data, which may
    /// contain a secret.
    pub(crate) fn audit(&self, protocol: &str, code: &str, trace: Option<&TraceContext>) {
        let trace_id = trace.map(TraceContext::trace_id);
        let (peer, device) = (self.address, self.device.as_deref().unwrap_or("-"));
        tracing::info!(target: "garenne_gateway::audit", %peer, device, protocol, code, trace_id, "refused");
    }
}
