//! The other end of a connection.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{certificate::ClientCertificate, source_limit::source};

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The address of the sender. Behind a trusted proxy it is the one that the proxy names.
    pub(crate) address: SocketAddr,
    /// Whether the address is that of a header `X-Forwarded-For`.
    is_forwarded: bool,
    certificate: Option<Arc<ClientCertificate>>,
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
        Self { address, is_forwarded: false, certificate: None, flags: Arc::default() }
    }

    /// The same connection with the client's certificate.
    pub(crate) fn with_certificate(&self, certificate: Option<Arc<ClientCertificate>>) -> Self {
        Self { certificate, ..self.clone() }
    }

    /// The same connection with another address of the sender. A proxy does not tell its port.
    pub(crate) fn forwarded_for(&self, address: IpAddr) -> Self {
        Self { address: SocketAddr::new(address, 0), is_forwarded: true, ..self.clone() }
    }

    /// Whether the address is one of many senders on this connection.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// The address or network by which senders are limited.
    pub(super) fn source(&self) -> IpAddr {
        source(self.address.ip())
    }

    /// The device that the certificate names.
    pub(crate) fn device(&self) -> Option<&Arc<str>> {
        self.certificate.as_ref().map(|certificate| certificate.device())
    }

    /// All names of the certificate.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.certificate.iter().flat_map(|certificate| certificate.names())
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
}
