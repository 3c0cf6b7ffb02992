//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use garenne_common::{
    config::{CommonArgs, ConfigError, flag, load, read_secret_file},
    exit::Failure,
};
use garenne_protocol::sensor::Timestamp;
use secrecy::ExposeSecret;

use crate::{
    publish::PublishOptions,
    replay::{ReplayOptions, Speed, mapping::Mapping},
    settings::ProducerSettings,
    simulate::{Faults, SimulateOptions},
};

/// Sends readings and tasks to Garenne: a gateway for sensors, and tools that publish, replay and
/// simulate.
#[derive(Debug, Parser)]
#[command(name = "garenne-producer", version, arg_required_else_help = true)]
pub struct Cli {
    /// Flags of all programs.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway: HTTP, InfluxDB writes and the TCP line protocol on one port
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(ServeArgs),
    /// Send the readings of a recording (CSV or NDJSON) at the recorded speed or faster
    #[command(after_help = REPLAY_EXAMPLE)]
    Replay(Box<ReplayArgs>),
    /// Publish NDJSON lines as tasks to the broker
    #[command(after_help = PUBLISH_EXAMPLE)]
    Publish(PublishArgs),
    /// Run virtual sensors with typical sensor faults
    #[command(after_help = SIMULATE_EXAMPLE)]
    Simulate(SimulateArgs),
}

const SERVE_EXAMPLE: &str = "Example:
  garenne-producer serve --listen 0.0.0.0:8080 --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f
  curl -i -H 'content-type: application/json' http://127.0.0.1:8080/v1/readings \\
       -d '{\"device\":\"d1\",\"metric\":\"temperature\",\"value\":21.5,\"unit\":\"Cel\"}'";

const REPLAY_EXAMPLE: &str = "Examples:
  garenne-producer replay greenhouse.csv --speed 60x --to http://127.0.0.1:8080
  garenne-producer replay AirQualityUCI.csv --utc-offset +01:00 --missing -200 --receipts sent.ndjson

Delimiter, decimal comma, time columns, devices, metrics, units and missing-value codes are detected.
Flags and a map override the detection. A map is a TOML file:
  time = [\"Date\", \"Time\"]
  device = \"roadside\"
  [columns.\"CO(GT)\"]
  metric = \"co\"
  unit = \"mg/m3\"";

const PUBLISH_EXAMPLE: &str = "Examples:
  echo '{\"n\":50}' | garenne-producer publish --kind bench.factorial
  garenne-producer publish --kind spectrum.analyze --file spectra.ndjson --id-field id";

const SIMULATE_EXAMPLE: &str = "Examples:
  garenne-producer simulate --sensors 1000 --rate 2 --for 30s --to tcp://127.0.0.1:8080
  garenne-producer simulate --sensors 4 --seed 7 --start 2026-01-01T00:00:00Z --spike 0.01";

/// Flags of `serve`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    /// Address that sensors connect to [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// How connections are run: worker-pool or connection-pool [default: connection-pool]
    #[arg(long, value_name = "SERVER")]
    pub server: Option<String>,
    /// File with one `NAME SHA256-HEX-OF-TOKEN [RECORDS/S]` per line; without it no token is needed
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Certificate chain in PEM; with it the port also accepts TLS
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Certificate authority of client certificates in PEM; with it every TLS client needs one
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
}

/// Flags of `replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// Recording to send; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Speed: max, or a factor of the recorded speed such as 60x
    #[arg(long, value_name = "SPEED", default_value = "max")]
    pub speed: Speed,
    /// Most readings per second
    #[arg(long, value_name = "N", value_parser = positive)]
    pub rate: Option<f64>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take a comment for the command's description")]
    pub sending: SendingArgs,
    /// Description of the file's columns, in TOML
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Column delimiter: one character, or tab
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<char>,
    /// Numbers have a decimal comma: 2,6 is 2.6
    #[arg(long)]
    pub decimal_comma: bool,
    /// Code of a missing value, such as -200; repeatable; none: every number is a value
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub missing: Vec<String>,
    /// Format of times, in strftime notation such as '%d/%m/%Y %H.%M.%S'
    #[arg(long, value_name = "FORMAT")]
    pub time_format: Option<String>,
    /// Heading of a column with the time or a part of it; repeatable
    #[arg(long, value_name = "HEADING")]
    pub time_column: Vec<String>,
    /// UTC offset of times without one, such as +01:00 [default: UTC]
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true)]
    pub utc_offset: Option<String>,
    /// Device of all rows [default: the column named device, sensor or similar, else the file name]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Heading of the column with the device
    #[arg(long, value_name = "HEADING")]
    pub device_column: Option<String>,
}

/// Flags of `publish`.
#[derive(Debug, Clone, Args)]
pub struct PublishArgs {
    /// Kind of the tasks; a lane must take it
    #[arg(long, value_name = "KIND", default_value = "reading.process")]
    pub kind: String,
    /// File to read [default: standard input]
    #[arg(long, value_name = "F")]
    pub file: Option<PathBuf>,
    /// Field with the task id; tasks with the same id take effect once
    #[arg(long, value_name = "NAME")]
    pub id_field: Option<String>,
    /// Field with the task key: in a lane with several shards, tasks with the same key go to the same
    /// queue [default: the task id]
    #[arg(long, value_name = "NAME")]
    pub key_field: Option<String>,
    /// Group of the tasks, to stop, pause or await them together
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Delay before the tasks may start
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub delay: Option<Duration>,
    /// Timeout of each attempt
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
    /// How long a refused task is published again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub retry_for: Duration,
}

impl PublishArgs {
    /// The options.
    pub fn options(self) -> PublishOptions {
        let Self { kind, file, id_field, key_field, group, delay, timeout, retry_for } = self;
        PublishOptions { kind, file, id_field, key_field, group, delay, timeout, retry_for }
    }
}

/// Flags of `simulate`.
#[derive(Debug, Clone, Args)]
pub struct SimulateArgs {
    /// Number of sensors; four consecutive ones are one device with four metrics
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub sensors: usize,
    /// Readings per second of each sensor
    #[arg(long, value_name = "R", default_value = "1", value_parser = positive)]
    pub rate: f64,
    /// Duration [default: until interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Seed of the random values; the same seed gives the same values
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time of the first readings [default: now]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub start: Option<Timestamp>,
    /// Standard deviation of the noise, in the metric's unit
    #[arg(long, value_name = "SIGMA", default_value = "0.15", value_parser = non_negative)]
    pub noise: f64,
    /// Drift per day, in the metric's unit
    #[arg(long, value_name = "PER-DAY", default_value_t = 0.5, allow_hyphen_values = true)]
    pub drift: f64,
    /// Probability that a reading is not sent
    #[arg(long, value_name = "P", default_value = "0", value_parser = probability)]
    pub dropout: f64,
    /// Probability that a sensor repeats its value for a while
    #[arg(long, value_name = "P", default_value = "0.001", value_parser = probability)]
    pub stuck: f64,
    /// Probability of an outlier
    #[arg(long, value_name = "P", default_value = "0.001", value_parser = probability)]
    pub spike: f64,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take a comment for the command's description")]
    pub sending: SendingArgs,
}

impl SimulateArgs {
    /// The options.
    ///
    /// # Errors
    /// The token file cannot be read.
    pub fn options(self) -> Result<SimulateOptions, Failure> {
        let token = self.sending.token()?;
        let faults = Faults {
            noise: self.noise,
            drift_per_day: self.drift,
            dropout: self.dropout,
            stuck: self.stuck,
            spike: self.spike,
        };
        let SendingArgs { to, receipts, batch, retry_for, .. } = self.sending;
        let Self { sensors, rate, duration, seed, start, .. } = self;
        Ok(SimulateOptions {
            sensors,
            rate,
            duration,
            seed,
            start,
            faults,
            to,
            token,
            receipts,
            batch,
            retry_for,
        })
    }
}

fn probability(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "expected a probability from 0 to 1".to_owned())
}

fn non_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number of at least 0".to_owned())
}

fn instant(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).map_err(|error| error.to_string())
}

/// Flags for sending readings.
#[derive(Debug, Clone, Args)]
pub struct SendingArgs {
    /// Gateway to send to, http://HOST:PORT or tcp://HOST:PORT [default: publish to the broker]
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// File with the token for the gateway
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Append a JSON line to this file for every confirmed reading
    #[arg(long, value_name = "FILE")]
    pub receipts: Option<PathBuf>,
    /// Most readings in one request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub batch: usize,
    /// Requests in flight at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub in_flight: usize,
    /// How long a refused request is sent again
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub retry_for: Duration,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

fn delimiter(text: &str) -> Result<char, String> {
    match text {
        "tab" | "\\t" => Ok('\t'),
        _ => {
            let mut chars = text.chars();
            match (chars.next(), chars.next()) {
                (Some(only), None) if only.is_ascii() => Ok(only),
                _ => Err("expected one ASCII character, or tab".to_owned()),
            }
        }
    }
}

impl SendingArgs {
    /// The token for the gateway.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn token(&self) -> Result<Option<String>, ConfigError> {
        let secret =
            self.token_file.as_deref().map(|path| read_secret_file("token_file", path)).transpose()?;
        Ok(secret.map(|secret| secret.expose_secret().to_owned()))
    }
}

impl ReplayArgs {
    /// The options. Flags override the map.
    ///
    /// # Errors
    /// The map or the token file cannot be read or is invalid.
    pub fn options(self) -> Result<ReplayOptions, Failure> {
        let mut mapping = self.map.as_deref().map_or_else(|| Ok(Mapping::default()), Mapping::read)?;
        mapping.delimiter = self.delimiter.or(mapping.delimiter);
        if self.decimal_comma {
            mapping.decimal_comma = Some(true);
        }
        if !self.missing.is_empty() {
            mapping.missing = Some(self.missing.into_iter().filter(|code| code != "none").collect());
        }
        if !self.time_column.is_empty() {
            mapping.time = self.time_column;
        }
        mapping.time_format = self.time_format.or(mapping.time_format);
        mapping.utc_offset = self.utc_offset.or(mapping.utc_offset);
        mapping.device = self.device.or(mapping.device);
        mapping.device_column = self.device_column.or(mapping.device_column);
        let token = self.sending.token()?;
        let SendingArgs { to, receipts, batch, in_flight, retry_for, .. } = self.sending;
        let (file, speed, rate) = (self.file, self.speed, self.rate);
        Ok(ReplayOptions { file, mapping, speed, rate, to, token, receipts, batch, in_flight, retry_for })
    }
}

impl Cli {
    /// The settings from flags, environment and file.
    ///
    /// # Errors
    /// The first unknown or invalid setting.
    pub fn settings(&self) -> Result<ProducerSettings, ConfigError> {
        let mut flags = toml::Table::new();
        if let Command::Serve(serve) = &self.command {
            flag(&mut flags, "listen", serve.listen.as_ref());
            flag(&mut flags, "server", serve.server.as_ref());
            flag(&mut flags, "tokens", serve.tokens.as_ref().map(|path| path.display()));
            flag(&mut flags, "tls_cert", serve.tls_cert.as_ref().map(|path| path.display()));
            flag(&mut flags, "tls_key", serve.tls_key.as_ref().map(|path| path.display()));
            flag(&mut flags, "tls_client_ca", serve.tls_client_ca.as_ref().map(|path| path.display()));
        }
        load(self.common.sources(flags))
    }
}
