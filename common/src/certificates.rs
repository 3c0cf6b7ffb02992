//! Certificates for TLS connections to a server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The settings `amqp_tls.*` and `postgres_tls.*`: PEM files, read again for each connection, so that renewed files
/// need no restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Certificates {
    /// Certificate authorities to trust in addition to the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate; needs `key`.
    pub cert: Option<PathBuf>,
    /// The client certificate's private key, unencrypted.
    pub key: Option<PathBuf>,
}
