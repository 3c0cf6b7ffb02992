//! The settings of all Garenne programs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::{
    AllowedHosts, Certificates, Events, IgnoredSettings, Invalid, Otlp, SecretUrl, validate_certificates,
    validate_server_tls,
};

/// The default address of the admin port.
pub const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Longest prefix, in bytes: the longest queue name must fit AMQP's 255 bytes.
const MAX_PREFIX_LEN: usize = 64;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: one line per event.
    #[default]
    Human,
    /// For log collectors: one JSON object per line.
    Json,
}

/// Settings of all programs; flatten them into the program's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Common {
    /// The broker's URL with user, password and virtual host; `amqp` or `amqps`. Default:
    /// `amqp://guest:guest@127.0.0.1:5672/%2f`.
    pub amqp_url: SecretUrl,
    /// Certificates for `amqps`.
    pub amqp_tls: Certificates,
    /// The URL of the broker's management API; `http` or `https`.
    pub management_url: Option<SecretUrl>,
    /// Prefix of all exchange and queue names; fleets that share a virtual host need different ones. Default: `garenne`.
    pub prefix: String,
    /// The format of log lines on stderr.
    pub log_format: LogFormat,
    /// Address of the admin port; unset, `127.0.0.1:9464` or, if that is in use, a free port. A worker inside of another program
    /// opens none unless this is set.
    #[serde(deserialize_with = "socket_address")]
    pub admin: Option<SocketAddr>,
    /// File with the admin token; unset, the admin port refuses commands.
    pub admin_token_file: Option<PathBuf>,
    /// Certificate chain in PEM; with it and the key the admin port speaks TLS only.
    pub admin_tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM.
    pub admin_tls_key: Option<PathBuf>,
    /// Names by which browsers may address the admin port and the dashboard.
    pub allowed_hosts: AllowedHosts,
    /// Events and heartbeats of this process.
    pub events: Events,
    /// Export of spans.
    pub otlp: Otlp,
    /// Not a setting: what the sources have that this program has not. [`init`](crate::telemetry::tracing::init) logs
    /// it.
    #[serde(skip)]
    pub ignored: Vec<IgnoredSettings>,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            amqp_url: "amqp://guest:guest@127.0.0.1:5672/%2f".parse().expect("the default is a URL"),
            amqp_tls: Certificates::default(),
            management_url: None,
            prefix: "garenne".to_owned(),
            log_format: LogFormat::default(),
            admin: None,
            admin_token_file: None,
            admin_tls_cert: None,
            admin_tls_key: None,
            allowed_hosts: AllowedHosts::default(),
            events: Events::default(),
            otlp: Otlp::default(),
            ignored: Vec::new(),
        }
    }
}

impl Common {
    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), Invalid> {
        scheme("amqp_url", &self.amqp_url, ["amqp", "amqps"])?;
        let plain = (self.amqp_url.scheme() != "amqps").then_some("needs an amqp_url with amqps://");
        validate_certificates(&self.amqp_tls, "amqp_tls", plain)?;
        if let Some(url) = &self.management_url {
            scheme("management_url", url, ["http", "https"])?;
        }
        validate_server_tls("admin_tls", self.admin_tls_cert.as_deref(), self.admin_tls_key.as_deref())?;
        self.check_features()?;
        self.allowed_hosts.validate()?;
        self.events.validate()?;
        self.otlp.validate()?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = (1..=MAX_PREFIX_LEN).contains(&self.prefix.len());
        let valid = fits && self.prefix.bytes().all(allowed) && !self.prefix.starts_with("amq.");
        let expected = "of A-Z a-z 0-9 - _ . without the reserved prefix amq.";
        let problem = format!("expected 1 to {MAX_PREFIX_LEN} {expected}");
        Invalid::unless(valid, "prefix", format_args!("{:?}", self.prefix), problem)
    }

    /// Refuses the settings of features that are not compiled in.
    fn check_features(&self) -> Result<(), Invalid> {
        let quoted = |path: &Option<PathBuf>| path.as_ref().map(|path| format!("{path:?}"));
        let endpoint = self.otlp.endpoint.as_ref().map(|endpoint| format!("{:?}", endpoint.masked()));
        for (feature, is_compiled, setting, value) in [
            ("admin", cfg!(feature = "admin"), "admin", self.admin.map(|address| address.to_string())),
            ("admin", cfg!(feature = "admin"), "admin_token_file", quoted(&self.admin_token_file)),
            ("admin", cfg!(feature = "admin"), "admin_tls_cert", quoted(&self.admin_tls_cert)),
            ("otlp", cfg!(feature = "otlp"), "otlp.endpoint", endpoint),
        ] {
            let problem =
                format!("this program is built without the feature `{feature}` of the crate garenne");
            Invalid::unless(is_compiled || value.is_none(), setting, value.unwrap_or_default(), problem)?;
        }
        Ok(())
    }

    /// Records the file that a setting was read from; see [`Settings::read_from`](super::Settings::read_from).
    pub fn read_from(&mut self, setting: &str, file: &Path) {
        match (setting, &mut self.management_url) {
            ("amqp_url", _) => self.amqp_url.read_from(file),
            ("management_url", Some(url)) => url.read_from(file),
            _ => {}
        }
    }
}

/// Checks a URL's scheme. `allowed` is the plain scheme and the one with TLS.
///
/// # Errors
/// Any other scheme.
pub fn scheme(setting: &str, url: &SecretUrl, allowed: [&str; 2]) -> Result<(), Invalid> {
    let ([plain, tls], shown) = (allowed, format_args!("{:?}", url.masked()));
    Invalid::unless(
        allowed.contains(&url.scheme()),
        setting,
        shown,
        format!("expected {plain}:// or {tls}://"),
    )
}

fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.trim().parse()).transpose().map_err(|_| {
        D::Error::custom(
            "not an address, expected an IP address and a port such as 127.0.0.1:9464 or [::1]:9464",
        )
    })
}
