//! Settings of the gateway.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use axum::http::HeaderValue;
use garenne_common::config::{Invalid, list};
use garenne_protocol::sensor::{Limits as RecordLimits, Timestamp};
use garenne_publish::{GroupCommitConfig, SpoolSettings};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    forward::ForwardSettings, limits::Limits, network::Network, server::ServerKind,
    source_limit::SourceLimit, tls::TlsVersion,
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
    /// The setting `tokens`, the senders file: tokens, certificates, and what each may send. Unset, no token is needed.
    #[serde(rename = "tokens")]
    pub senders_file: Option<PathBuf>,
    /// Certificate chain in PEM; with it and a key the port also speaks TLS.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM.
    pub tls_key: Option<PathBuf>,
    /// Certificate authority of the sensors' certificates; with it every TLS client needs one.
    pub tls_client_ca: Option<PathBuf>,
    /// Refuses connections without TLS.
    pub tls_only: bool,
    /// The lowest TLS version.
    pub tls_min_version: TlsVersion,
    /// Networks of proxies that are trusted to name the sender's address.
    #[serde(with = "list")]
    pub trusted_proxies: Vec<IpNet>,
    /// Connections of trusted proxies start with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// Origins of web pages that may send, such as `https://app.example.org`.
    #[serde(with = "list")]
    pub allowed_origins: Vec<String>,
    /// Files with rules for payloads of other projects, for `POST /v1/map/{name}`.
    #[serde(with = "list")]
    pub maps: Vec<PathBuf>,
    /// How far a reading's time may be ahead of the local clock; 0 for no limit. Workers have the same setting.
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Duration,
    /// The earliest time that a reading may have. Workers have the same setting.
    pub min_time: Timestamp,
    /// Limits per connection and request.
    #[serde(rename = "gateway")]
    pub limits: Limits,
    /// Bounds of group commit.
    pub group_commit: GroupCommitConfig,
    /// Where requests are stored while the broker does not confirm.
    #[serde(flatten)]
    pub spool: SpoolSettings,
    /// The central gateway that everything is forwarded to, instead of the broker.
    pub forward: ForwardSettings,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            server: ServerKind::default(),
            senders_file: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            tls_only: false,
            tls_min_version: TlsVersion::default(),
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            allowed_origins: Vec::new(),
            maps: Vec::new(),
            max_clock_skew: MAX_CLOCK_SKEW,
            min_time: Timestamp::DEFAULT_MIN,
            limits: Limits::default(),
            group_commit: GroupCommitConfig::default(),
            spool: SpoolSettings::default(),
            forward: ForwardSettings::default(),
        }
    }
}

impl GatewaySettings {
    /// Checks every setting. The error is the first invalid one.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.limits.validate()?;
        self.group_commit.validate()?;
        self.spool.validate()?;
        let missing =
            |setting, given| Err(Invalid::new(setting, "unset", format!("required because {given} is set")));
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(_), None, _) => return missing("tls_key", "tls_cert"),
            (None, Some(_), _) => return missing("tls_cert", "tls_key"),
            (None, None, Some(_)) => return missing("tls_cert", "tls_client_ca"),
            (None, None, None) if self.tls_only => return missing("tls_cert", "tls_only"),
            _ => {}
        }
        self.forward.validate()?;
        if self.forward.url.is_some() && self.spool.spool.is_none() {
            return missing("spool", "forward.url");
        }
        if self.proxy_protocol && self.trusted_proxies.is_empty() {
            return missing("trusted_proxies", "proxy_protocol");
        }
        self.allowed_origins.iter().try_for_each(|origin| check_origin(origin))
    }

    /// The bounds of readings' times.
    pub fn record_limits(&self) -> RecordLimits {
        RecordLimits::of_times(self.max_clock_skew, self.min_time)
    }

    /// Where connections may come from and how.
    pub fn network(&self) -> Network {
        // The check accepts visible ASCII only, so that no origin is left out.
        let origins = self.allowed_origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
        Network {
            proxy_protocol: self.proxy_protocol,
            trusted_proxies: self.trusted_proxies.clone(),
            tls_only: self.tls_only,
            allowed_origins: origins.collect(),
            sources: SourceLimit::new(self.limits.max_connections_per_source),
        }
    }
}

/// Refuses what no browser sends as an origin. It would match nothing.
fn check_origin(origin: &str) -> Result<(), Invalid> {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let is_origin = host.is_some_and(|host| {
        !host.is_empty() && !host.contains(['/', '*']) && host.bytes().all(|byte| byte.is_ascii_graphic())
    });
    let expected =
        "expected a scheme, a host and a port unless it is the scheme's own, such as https://app.example.org";
    Invalid::unless(is_origin, "allowed_origins", format!("{origin:?}"), expected)
}
