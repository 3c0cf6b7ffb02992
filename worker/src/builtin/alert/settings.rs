//! Where alerts may go, and how patiently. Table `alert` of the settings:
//!
//! ```toml
//! [alert]
//! window = "250ms"                  # alerts to one webhook wait this long for others
//! allow_networks = ["10.0.0.0/8"]   # private addresses that may be asked; none by default
//!
//! [alert.webhooks.ops]
//! url = "https://example.com/hooks/garenne"
//! secret = "whsec_…"                # or GARENNE_ALERT__WEBHOOKS__OPS__SECRET_FILE=/run/secrets/ops
//! headers = { Authorization = "Bearer …" }
//! ```

use std::{collections::BTreeMap, fmt, time::Duration};

use garenne_common::config::{Invalid, list};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};
use url::Url;

pub use super::signature::SigningSecret;

/// The table `alert`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertSettings {
    /// Named destinations.
    pub webhooks: BTreeMap<String, Webhook>,
    /// Networks that may be asked although they are not public, such as `10.0.0.0/8`.
    #[serde(with = "list")]
    pub allow_networks: Vec<IpNet>,
    /// How long one request may take, connecting included; 1 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Further requests at once after one that failed in passing, 0 to 10; what comes after those is
    /// the retry ladder.
    pub retries: usize,
    /// How long an alert waits for others to the same webhook, at most 10 s.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Alerts in one request, 1 to 100. There are never more than tasks running in the alerts' lane.
    pub batch: usize,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self {
            webhooks: BTreeMap::new(),
            allow_networks: Vec::new(),
            timeout: Duration::from_secs(10),
            retries: 2,
            window: Duration::from_millis(250),
            batch: 50,
        }
    }
}

/// A destination.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhook {
    /// Where to; must be given.
    pub url: Option<HookUrl>,
    /// What requests are signed with; unsigned without it.
    pub secret: Option<SigningSecret>,
    /// Headers to add, at most 16; their values are not shown.
    #[serde(serialize_with = "masked")]
    pub headers: BTreeMap<String, String>,
}

fn masked<S: Serializer>(headers: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, "***")))
}

/// The longest URL, in bytes.
const LONGEST_URL: usize = 2048;
/// Most headers of a webhook, and the longest value.
const MOST_HEADERS: usize = 16;
const LONGEST_HEADER: usize = 4096;
/// Headers that are ours to set.
const RESERVED: [&str; 7] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "idempotency-key",
    "user-agent",
];

/// A URL to post to: http or https, with a host, without user or password. Shown without its path,
/// which is the secret of many a webhook.
#[derive(Clone, PartialEq, Eq)]
pub struct HookUrl(Url);

impl HookUrl {
    /// Takes a URL.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST_URL {
            return Err(format!("{} bytes, a URL may have {LONGEST_URL}", text.len()));
        }
        let mut url = Url::parse(text).map_err(|error| format!("no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("scheme {:?}; http and https are allowed", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a user or password in it; use headers".into());
        }
        url.set_fragment(None);
        Ok(Self(url))
    }

    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    /// Host and port: what a breaker watches.
    pub(super) fn authority(&self) -> String {
        let port = self.0.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.0.host_str().unwrap_or_default())
    }
}

impl fmt::Display for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/***", self.0.scheme(), self.authority())
    }
}

impl fmt::Debug for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HookUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HookUrl {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl AlertSettings {
    /// What no single value shows.
    ///
    /// # Errors
    /// The first setting that is refused.
    pub fn validate(&self) -> Result<(), Invalid> {
        let span = |name: &str, value: Duration, low: u64, high: u64| {
            let allowed = Duration::from_millis(low)..=Duration::from_millis(high);
            if allowed.contains(&value) {
                return Ok(());
            }
            let problem = format!("expected {:?} to {:?}", allowed.start(), allowed.end());
            Err(Invalid::new(format!("alert.{name}"), format!("{value:?}"), problem))
        };
        span("timeout", self.timeout, 1, 60_000)?;
        span("window", self.window, 0, 10_000)?;
        if self.retries > 10 {
            return Err(Invalid::new("alert.retries", self.retries, "expected 0 to 10"));
        }
        if !(1..=100).contains(&self.batch) {
            return Err(Invalid::new("alert.batch", self.batch, "expected 1 to 100"));
        }
        for (name, webhook) in &self.webhooks {
            let setting = format!("alert.webhooks.{name}");
            if webhook.url.is_none() {
                let problem = "it needs one, such as https://example.com/hook";
                return Err(Invalid::new(format!("{setting}.url"), "nothing", problem));
            }
            webhook
                .header_map()
                .map_err(|problem| Invalid::new(format!("{setting}.headers"), "***", problem))?;
        }
        Ok(())
    }
}

impl Webhook {
    /// The headers, checked.
    pub(super) fn header_map(&self) -> Result<HeaderMap, String> {
        if self.headers.len() > MOST_HEADERS {
            return Err(format!("{} headers, {MOST_HEADERS} are allowed", self.headers.len()));
        }
        let mut map = HeaderMap::new();
        for (name, value) in &self.headers {
            let bad = |why: &str| format!("{name:?}: {why}");
            let lower = name.to_ascii_lowercase();
            if RESERVED.contains(&lower.as_str()) || lower.starts_with("webhook-") {
                return Err(bad("this header is set by the worker"));
            }
            let header = HeaderName::from_bytes(lower.as_bytes()).map_err(|_| bad("no header's name"))?;
            let mut value = HeaderValue::from_str(value).map_err(|_| bad("no header's value"))?;
            if value.len() > LONGEST_HEADER {
                return Err(bad(&format!("a value of {} bytes, {LONGEST_HEADER} are allowed", value.len())));
            }
            value.set_sensitive(true);
            map.insert(header, value);
        }
        Ok(map)
    }
}
