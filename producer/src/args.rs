//! Flags that several commands share.

use std::{path::PathBuf, time::Duration};

use clap::{Args, builder::RangedU64ValueParser};
use garenne_common::config::Certificates;
use serde::Serialize;

/// Flags for sending readings.
#[derive(Debug, Clone, Args)]
pub(crate) struct SendingArgs {
    /// Gateway to send to: http://, https://, tcp:// (lines) or tls:// (lines over TLS) and HOST:PORT, or an MQTT broker,
    /// as Zigbee2MQTT does: mqtt:// or mqtts:// [default: publish to the broker]
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,
    /// File with the token for the gateway
    #[arg(long, value_name = "FILE", requires = "to")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate authorities of the gateway in PEM, in addition to the system's
    #[arg(long, value_name = "FILE", requires = "to")]
    ca: Option<PathBuf>,
    /// Client certificate in PEM
    #[arg(long, value_name = "FILE", requires = "to", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate in PEM
    #[arg(long, value_name = "FILE", requires = "to", requires = "cert")]
    key: Option<PathBuf>,
    /// Directory to store readings in that the broker does not confirm in time (spool_after) [default: wait]
    #[arg(long, value_name = "DIR", conflicts_with = "to")]
    pub(crate) spool: Option<PathBuf>,
    /// Append a JSON line to this file for every confirmed or spooled reading
    #[arg(long, value_name = "FILE")]
    pub(crate) receipts: Option<PathBuf>,
    /// Most readings in one request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub(crate) batch: usize,
    /// Requests in flight at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) in_flight: usize,
    /// How long a refused request is sent again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) retry_for: Duration,
}

impl SendingArgs {
    /// The files of `--ca`, `--cert` and `--key`.
    pub(crate) fn certificates(&self) -> Certificates {
        Certificates { ca: self.ca.clone(), cert: self.cert.clone(), key: self.key.clone() }
    }
}

/// Flags of `serve` and `mqtt` for their spool. Each has the name of its setting.
#[derive(Debug, Args, Serialize)]
pub(crate) struct SpoolFlags {
    /// Directory of the spool, which stores what the broker does not confirm in time [default: no spool]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Most bytes in the spool [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    spool_max_bytes: Option<String>,
    /// Greatest age of the oldest record in the spool [default: 7days]
    #[arg(long, value_name = "TIME")]
    spool_max_age: Option<String>,
    /// Least free space of the spool's disk [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    spool_min_free: Option<String>,
    /// How long to wait for the broker's confirm before something is spooled [default: 1s]
    #[arg(long, value_name = "TIME")]
    spool_after: Option<String>,
    /// Most records per second that are drained from the spool; 0 for no limit [default: 20000]
    #[arg(long, value_name = "N")]
    spool_drain_rate: Option<u32>,
}

/// Flags of `serve` for a site that forwards to a central gateway. They are settings of the table `forward`.
#[derive(Debug, Args)]
pub(crate) struct ForwardFlags {
    /// Central gateway to forward to, instead of publishing to the broker; needs --spool
    #[arg(long = "forward", value_name = "URL")]
    url: Option<String>,
    /// File with the token for the central gateway
    #[arg(long = "forward-token-file", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificate authorities of the central gateway in PEM, in addition to the system's
    #[arg(long = "forward-ca", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate for the central gateway in PEM
    #[arg(long = "forward-cert", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of that certificate in PEM
    #[arg(long = "forward-key", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl ForwardFlags {
    /// Adds the table `forward` to the settings if one of its flags is given.
    pub(crate) fn add_to(&self, settings: &mut toml::Table) -> Result<(), toml::ser::Error> {
        let Self { url, token_file, ca, cert, key } = self;
        let tls = Certificates { ca: ca.clone(), cert: cert.clone(), key: key.clone() };
        let mut forward = toml::Table::new();
        forward.extend(url.as_ref().map(|url| ("url".to_owned(), url.clone().into())));
        if let Some(file) = token_file {
            forward.insert("token_file".to_owned(), toml::Value::try_from(file)?);
        }
        if tls != Certificates::default() {
            forward.insert("tls".to_owned(), toml::Value::try_from(&tls)?);
        }
        if !forward.is_empty() {
            settings.insert("forward".to_owned(), forward.into());
        }
        Ok(())
    }
}

/// A parser of the finite numbers that are `valid`.
pub(crate) fn number(
    valid: fn(f64) -> bool,
    expected: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite() && valid(*number));
        number.ok_or_else(|| format!("expected {expected}"))
    }
}

/// A parser of rates.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    number(|number| number > 0.0, "a number above 0")(text)
}
