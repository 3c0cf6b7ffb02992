//! Settings of the gateway.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use garenne_common::config::Invalid;
use serde::{Deserialize, Serialize};

use crate::{
    limits::Limits, server::ServerKind, task_publisher::group_commit::GroupCommitConfig, tls::TlsFiles,
};

/// The default of `max_clock_skew`.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(600);

/// Settings of `garenne-producer serve`, besides those of the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewaySettings {
    /// The address that sensors connect to.
    pub listen: SocketAddr,
    /// The server that runs the connections.
    pub server: ServerKind,
    /// File with token hashes; unset, no token is needed.
    pub tokens: Option<PathBuf>,
    /// Certificate chain in PEM; with it and a key the port also speaks TLS.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM.
    pub tls_key: Option<PathBuf>,
    /// Certificate authority of the sensors' certificates; with it every TLS client needs one.
    pub tls_client_ca: Option<PathBuf>,
    /// How far a reading's time may be ahead of the local clock; 0 for no limit. Workers have the same setting.
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Duration,
    /// Limits per connection and request.
    #[serde(rename = "gateway")]
    pub limits: Limits,
    /// Bounds of group commit.
    pub group_commit: GroupCommitConfig,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            server: ServerKind::default(),
            tokens: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            max_clock_skew: MAX_CLOCK_SKEW,
            limits: Limits::default(),
            group_commit: GroupCommitConfig::default(),
        }
    }
}

impl GatewaySettings {
    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.limits.validate()?;
        self.group_commit.validate()?;
        let missing =
            |setting, given| Err(Invalid::new(setting, "nothing", format!("{given} is set and needs it")));
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(_), None, _) => missing("tls_key", "tls_cert"),
            (None, Some(_), _) => missing("tls_cert", "tls_key"),
            (None, None, Some(_)) => missing("tls_cert", "tls_client_ca"),
            _ => Ok(()),
        }
    }

    /// The files for TLS, if it is on.
    pub(super) fn tls_files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key, client_ca: self.tls_client_ca.clone() })
    }
}
