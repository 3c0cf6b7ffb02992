//! The settings that every Garenne program has.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::{Certificates, Events, Invalid, Otlp, SecretUrl};

/// Where the admin port is when nobody says otherwise.
pub const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Longest prefix: leaves room for the longest queue name within AMQP's 255 bytes.
const LONGEST_PREFIX: usize = 64;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: one line an event.
    #[default]
    Human,
    /// For collectors: one JSON object a line.
    Json,
}

/// Settings of every program; flatten it into the program's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Common {
    /// The broker, with user, password and virtual host: `amqp` or `amqps`.
    pub amqp_url: SecretUrl,
    /// For `amqps`.
    pub amqp_tls: Certificates,
    /// The broker's management API, for what AMQP cannot tell: `http` or `https`.
    pub management_url: Option<SecretUrl>,
    /// First part of every exchange's and queue's name; two fleets on one virtual host differ in it.
    pub prefix: String,
    /// How log lines look on stderr.
    pub log_format: LogFormat,
    /// Where the admin port listens; unset, [`DEFAULT_ADMIN`] or, if that is taken, a free port.
    #[serde(deserialize_with = "socket_address")]
    pub admin: Option<SocketAddr>,
    /// The file with the admin token; unset, the admin port only answers questions.
    pub admin_token_file: Option<PathBuf>,
    /// What this process says of itself.
    pub events: Events,
    /// Where its spans go.
    pub otlp: Otlp,
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
            events: Events::default(),
            otlp: Otlp::default(),
        }
    }
}

impl Common {
    /// # Errors
    /// The first setting that is refused: a URL's scheme, or the prefix.
    pub fn validate(&self) -> Result<(), Invalid> {
        scheme("amqp_url", &self.amqp_url, ["amqp", "amqps"])?;
        let plain = (self.amqp_url.scheme() != "amqps").then_some("is for amqps:// and amqp_url has none");
        self.amqp_tls.validate("amqp_tls", plain)?;
        if let Some(url) = &self.management_url {
            scheme("management_url", url, ["http", "https"])?;
        }
        self.events.validate()?;
        self.otlp.validate()?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = (1..=LONGEST_PREFIX).contains(&self.prefix.len());
        if !fits || !self.prefix.bytes().all(allowed) || self.prefix.starts_with("amq.") {
            return Err(Invalid::new(
                "prefix",
                format_args!("{:?}", self.prefix),
                format!(
                    "expected 1 to {LONGEST_PREFIX} of A-Z a-z 0-9 - _ . and not the broker's own amq. in front"
                ),
            ));
        }
        Ok(())
    }
}

impl Common {
    /// Notes where a setting of these was read from; see [`Settings::read_from`](super::Settings::read_from).
    pub fn read_from(&mut self, setting: &str, file: &Path) {
        if setting == "amqp_url" {
            self.amqp_url.read_from(file);
        }
    }
}

/// # Errors
/// A URL with another scheme than these: the plain one, and the one with TLS.
pub fn scheme(setting: &str, url: &SecretUrl, allowed: [&str; 2]) -> Result<(), Invalid> {
    if allowed.contains(&url.scheme()) {
        return Ok(());
    }
    let [plain, tls] = allowed;
    Err(Invalid::new(setting, format_args!("{:?}", url.masked()), format!("expected {plain}:// or {tls}://")))
}

fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.trim().parse()).transpose().map_err(|_| {
        D::Error::custom("no address, expected an IP address and a port such as 127.0.0.1:9464 or [::1]:9464")
    })
}
