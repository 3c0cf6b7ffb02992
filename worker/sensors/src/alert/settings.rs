//! The table `alert` of the settings: webhooks, URLs in payloads, timeouts and batching.
//!
//! ```toml
//! [alert]
//! window = "250ms"                  # time that an alert waits for others to the same webhook
//!
//! [alert.webhooks.ops]
//! url = "https://example.com/hooks/garenne"
//! secret = "whsec_…"                # or GARENNE_ALERT__WEBHOOKS__OPS__SECRET_FILE=/run/secrets/ops
//! headers = { Authorization = "Bearer …" }
//!
//! [alert.payload_urls]
//! hosts = ["*.example.com"]         # hosts that payloads may name; none by default
//! ```

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use derive_more::{Debug, Display};
use garenne_common::config::{ConfigError, Invalid, read_secret_file};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize, Serializer};
use serde_with::{DeserializeFromStr, SerializeDisplay};
use url::Url;

pub use super::payload_urls::{HostPattern, PayloadUrls};
pub use garenne_common::webhook::SigningSecret;

/// The webhook of an alert that names none.
pub const DEFAULT_WEBHOOK: &str = "default";

/// The table `alert`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertSettings {
    /// Named destinations. Their hosts are trusted, whatever their addresses are.
    pub webhooks: BTreeMap<String, Webhook>,
    /// URLs that a payload may name; none by default.
    pub payload_urls: PayloadUrls,
    /// Time limit for one request, including the connection; 1 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Immediate retries after a transient failure, 0 to 10. Then the retry ladder takes over.
    pub retries: usize,
    /// Time that an alert waits for others to the same webhook, at most 10 s.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Alerts in one request at most, 1 to 100. A batch holds running tasks, so the concurrency of the alerts' lane
    /// limits it too.
    pub batch: usize,
    /// Requests to one host at once, 1 to 100.
    pub per_host: usize,
    /// How long the next notice of an alarm waits for one that nobody has heard of since it was published, 1 s to 1 day.
    #[serde(with = "humantime_serde")]
    pub notice_wait: Duration,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self {
            webhooks: BTreeMap::new(),
            payload_urls: PayloadUrls::default(),
            timeout: Duration::from_secs(10),
            retries: 2,
            window: Duration::from_millis(250),
            batch: 50,
            per_host: 4,
            notice_wait: Duration::from_secs(600),
        }
    }
}

/// A named destination.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhook {
    /// The URL; required.
    pub url: Option<WebhookUrl>,
    /// The signing key; requests are unsigned without it.
    pub secret: Option<SigningSecret>,
    /// Additional request headers, at most 16. Their values are masked in output.
    #[serde(serialize_with = "masked")]
    pub headers: BTreeMap<String, String>,
    /// Not a setting: the files that settings of this table were read from, by their names in it. They are read again
    /// when they change.
    #[serde(skip)]
    pub files: BTreeMap<String, PathBuf>,
}

fn masked<S: Serializer>(headers: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, "***")))
}

/// Limit for a URL, in bytes.
const MAX_URL_BYTES: usize = 2048;
/// Limit for the headers of a webhook.
const MAX_HEADERS: usize = 16;
/// Limit for a header's value, in bytes.
const MAX_HEADER_BYTES: usize = 4096;
/// Headers that the worker sets.
const RESERVED: [&str; 7] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "idempotency-key",
    "user-agent",
];

/// The URL of a webhook: http or https, with a host, without user or password. Output shows it without its path,
/// which often contains a secret.
#[derive(Clone, PartialEq, Eq, Debug, Display, DeserializeFromStr, SerializeDisplay)]
#[display("{}://{}/***", self.0.scheme(), self.authority())]
#[debug("{self}")]
pub struct WebhookUrl(Url);

/// Parses a URL. The error states the problem, without the URL.
impl FromStr for WebhookUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_URL_BYTES {
            return Err(format!("{} bytes; at most {MAX_URL_BYTES} are allowed", text.len()));
        }
        let mut url = Url::parse(text).map_err(|error| format!("invalid URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("scheme {:?}; expected http or https", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("contains a user or password; use headers instead".into());
        }
        url.set_fragment(None);
        Ok(Self(url))
    }
}

impl WebhookUrl {
    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    /// The host name or address; an IPv6 address without its brackets.
    pub(super) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default().trim_matches(['[', ']'])
    }

    /// Host and port, the key of the circuit breaker.
    pub(super) fn authority(&self) -> String {
        let port = self.0.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.0.host_str().unwrap_or_default())
    }
}

impl AlertSettings {
    /// Whether any alert can be sent.
    pub(super) fn has_destinations(&self) -> bool {
        !self.webhooks.is_empty() || !self.payload_urls.hosts.is_empty()
    }

    /// Records the file that a webhook's setting was read from.
    pub fn read_from(&mut self, setting: &str, file: &Path) {
        let path = setting.strip_prefix("alert.webhooks.").and_then(|path| path.split_once('.'));
        if let Some((name, field)) = path
            && let Some(webhook) = self.webhooks.get_mut(name)
        {
            webhook.files.insert(field.to_owned(), file.to_owned());
        }
    }

    /// Checks the bounds of all values.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (name, value, low, high) in [
            ("timeout", self.timeout, 1, 60_000),
            ("window", self.window, 0, 10_000),
            ("notice_wait", self.notice_wait, 1_000, 86_400_000),
        ] {
            let allowed = Duration::from_millis(low)..=Duration::from_millis(high);
            if !allowed.contains(&value) {
                let problem = format!("expected {:?} to {:?}", allowed.start(), allowed.end());
                return Err(Invalid::new(format!("alert.{name}"), format!("{value:?}"), problem));
            }
        }
        if self.retries > 10 {
            return Err(Invalid::new("alert.retries", self.retries, "expected 0 to 10"));
        }
        for (name, value) in [("batch", self.batch), ("per_host", self.per_host)] {
            let path = format!("alert.{name}");
            Invalid::unless((1..=100).contains(&value), path, value, "expected 1 to 100")?;
        }
        for (name, webhook) in &self.webhooks {
            let setting = format!("alert.webhooks.{name}");
            if webhook.url.is_none() {
                let problem = "required, such as https://example.com/hook";
                return Err(Invalid::new(format!("{setting}.url"), "unset", problem));
            }
            webhook
                .header_map()
                .map_err(|problem| Invalid::new(format!("{setting}.headers"), "***", problem))?;
        }
        Ok(())
    }
}

impl Webhook {
    /// The webhook with what its files hold now. An error does not repeat what a file holds.
    pub(super) fn read_again(&self) -> Result<Self, ConfigError> {
        let mut again = self.clone();
        for (field, file) in &self.files {
            let text = read_secret_file(field, file)?;
            let text = text.expose_secret();
            let invalid =
                |problem: String| ConfigError::file("secret file", file, format!("setting {field}"), problem);
            match field.as_str() {
                "url" => again.url = Some(text.parse().map_err(invalid)?),
                "secret" => again.secret = Some(text.parse().map_err(invalid)?),
                field => {
                    let header = field.trim_start_matches("headers.").to_owned();
                    again.headers.insert(header, text.to_owned());
                    again.header_map().map_err(invalid)?;
                }
            }
        }
        Ok(again)
    }

    /// The additional headers. An error names the header, without its value.
    pub(super) fn header_map(&self) -> Result<HeaderMap, String> {
        if self.headers.len() > MAX_HEADERS {
            return Err(format!("{} headers; at most {MAX_HEADERS} are allowed", self.headers.len()));
        }
        let mut map = HeaderMap::new();
        for (name, value) in &self.headers {
            let invalid = |problem: &str| format!("{name:?}: {problem}");
            let lower = name.to_ascii_lowercase();
            if RESERVED.contains(&lower.as_str()) || lower.starts_with("webhook-") {
                return Err(invalid("reserved, the worker sets it"));
            }
            let header =
                HeaderName::from_bytes(lower.as_bytes()).map_err(|_| invalid("invalid header name"))?;
            let mut value = HeaderValue::from_str(value).map_err(|_| invalid("invalid header value"))?;
            if value.len() > MAX_HEADER_BYTES {
                return Err(invalid(&format!(
                    "value of {} bytes; at most {MAX_HEADER_BYTES} are allowed",
                    value.len()
                )));
            }
            value.set_sensitive(true);
            map.insert(header, value);
        }
        Ok(map)
    }
}
