//! The command line.

use std::{ops::Not, path::PathBuf};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use garenne_common::{
    config::{CommonArgs, load, print_config},
    exit::{Exit, Failure},
    shutdown::{Mode, signal},
    stdout,
    telemetry::tracing::init,
};
use garenne_gateway::GatewaySettings;
use serde::Serialize;

use crate::{
    args::{ForwardFlags, SpoolFlags},
    map::{self, MapArgs},
    mqtt::MqttArgs,
    publish::{self, PublishArgs},
    replay::{self, ReplayArgs},
    settings::ProducerSettings,
    simulate::{self, SimulateArgs},
    spool::{self, SpoolArgs},
};

/// Sends readings and tasks to Garenne: a gateway for sensors, and tools that publish, replay and
/// simulate.
#[derive(Debug, Parser)]
#[command(name = "garenne-producer", version, arg_required_else_help = true)]
pub struct Cli {
    /// Flags of all programs.
    #[command(flatten)]
    common: CommonArgs,
    /// The command.
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway: HTTP, InfluxDB writes and the TCP line protocol on one port
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(Box<ServeArgs>),
    /// Run the MQTT bridge: subscribe to an MQTT broker, map messages to readings, acknowledge them when they are stored
    #[command(after_help = MQTT_EXAMPLE)]
    Mqtt(Box<MqttArgs>),
    /// Send the readings of a recording (CSV or NDJSON) at the recorded speed or faster
    #[command(after_help = REPLAY_EXAMPLE)]
    Replay(Box<ReplayArgs>),
    /// Publish NDJSON lines as tasks to the broker
    #[command(after_help = PUBLISH_EXAMPLE)]
    Publish(PublishArgs),
    /// Run virtual sensors with typical sensor faults
    #[command(after_help = SIMULATE_EXAMPLE)]
    Simulate(SimulateArgs),
    /// Try rules that turn foreign payloads into readings, list the shipped ones, and map dead letters again
    #[command(after_help = MAP_EXAMPLE)]
    Map(MapArgs),
    /// Look at a spool, check it, export its records and publish them
    #[command(after_help = SPOOL_EXAMPLE)]
    Spool(SpoolArgs),
}

const SERVE_EXAMPLE: &str = "Example:
  garenne-producer serve --listen 0.0.0.0:8080 --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f
  curl -i -H 'content-type: application/json' http://127.0.0.1:8080/v1/readings \\
       -d '{\"device\":\"d1\",\"metric\":\"temperature\",\"value\":21.5,\"unit\":\"Cel\"}'
  garenne-producer serve --spool /var/lib/garenne/spool --forward https://central.example:8080 \\
       --forward-token-file /etc/garenne/central-token";

const MQTT_EXAMPLE: &str = "Examples:
  garenne-producer mqtt --url mqtt://127.0.0.1 --subscribe 'zigbee2mqtt/#' --maps builtin:zigbee2mqtt
  garenne-producer mqtt --url mqtts://broker.example --protocol 5 --subscribe '$share/garenne/tele/#' \\
       --maps builtin:tasmota --maps /etc/garenne/site.toml
  garenne-producer mqtt --url mqtt://127.0.0.1 --subscribe 'zigbee2mqtt/#' --maps builtin:zigbee2mqtt \\
       --spool /var/lib/garenne/mqtt-spool";

const REPLAY_EXAMPLE: &str = "Examples:
  garenne-producer replay greenhouse.csv --speed 60x --to http://127.0.0.1:8080
  garenne-producer replay greenhouse.csv --to https://gateway.example:8080 --token-file token
  garenne-producer replay AirQualityUCI.csv --zone Europe/Rome --dry-run >air.toml
  garenne-producer replay AirQualityUCI.csv --map air.toml --receipts sent.ndjson
  gzip -dc roof.csv.gz | garenne-producer replay - --max-malformed 10

Delimiter, decimal signs, time columns, devices, metrics, units and missing-value codes are detected;
--dry-run prints them as a map. Flags and a map override the detection. A map is a TOML file:
  time = [\"Date\", \"Time\"]
  device = \"roadside\"
  [columns.\"CO(GT)\"]
  metric = \"co\"
  unit = \"mg/m3\"";

const PUBLISH_EXAMPLE: &str = "Examples:
  echo '{\"n\":50}' | garenne-producer publish --kind bench.factorial
  garenne-producer publish --kind reading.process --file readings.ndjson --id-field id
  echo '{\"n\":50}' | garenne-producer publish --kind bench.factorial --ids";

const SIMULATE_EXAMPLE: &str = "Examples:
  garenne-producer simulate --sensors 1000 --rate 2 --for 30s --to tcp://127.0.0.1:8080
  garenne-producer simulate --sensors 4 --seed 7 --start 2026-01-01T00:00:00Z --spike 0.01";

const MAP_EXAMPLE: &str = "Examples:
  garenne-producer map list
  echo '{\"temperature\":21.5}' | \\
    garenne-producer map test builtin:zigbee2mqtt - --topic zigbee2mqtt/kitchen
  garenne-producer map show tasmota >my.toml
  garenne-producer map test my.toml sample.json --topic tele/plug-1/SENSOR";

const SPOOL_EXAMPLE: &str = "Examples:
  garenne-producer spool show /var/lib/garenne/spool
  garenne-producer spool verify /var/lib/garenne/spool
  garenne-producer spool export /var/lib/garenne/spool --set-aside >kept.ndjson
  garenne-producer spool drain /var/lib/garenne/spool --rate 2000";

/// Flags of `serve`. Each has the name of its setting.
#[derive(Debug, Args, Serialize)]
struct ServeArgs {
    /// Address that sensors connect to [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// How connections are run: worker-pool or connection-pool [default: connection-pool]
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,
    /// The senders file, TOML: tokens, certificates and what each sender may send; without it no token is needed
    #[arg(long = "tokens", value_name = "FILE")]
    #[serde(rename = "tokens")]
    senders_file: Option<PathBuf>,
    /// Certificate chain in PEM; with it the port also accepts TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Certificate authority of client certificates in PEM; with it every TLS client needs one
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Refuse connections without TLS
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    tls_only: bool,
    /// Lowest TLS version: 1.2 or 1.3 [default: 1.2]
    #[arg(long, value_name = "VERSION")]
    tls_min_version: Option<String>,
    /// Networks of proxies that may name the sender's address, with commas between them
    #[arg(long, value_name = "CIDR,…")]
    trusted_proxies: Option<String>,
    /// Require a PROXY protocol header (version 1 or 2) on connections from trusted proxies
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    proxy_protocol: bool,
    /// TOML file with rules for POST /v1/map/NAME, NAME being that of the file; repeatable
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    maps: Vec<PathBuf>,
    /// Origins of web pages that may send, with commas between them [default: none]
    #[arg(long, value_name = "ORIGIN,…")]
    allowed_origins: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    spool: SpoolFlags,
    /// They are in the table `forward`.
    #[command(flatten)]
    #[serde(skip)]
    forward: ForwardFlags,
}

impl ServeArgs {
    /// The flags as settings.
    fn flags(&self) -> Result<toml::Table, toml::ser::Error> {
        let mut flags = toml::Table::try_from(self)?;
        self.forward.add_to(&mut flags)?;
        Ok(flags)
    }
}

impl Cli {
    /// Whether this is the MQTT bridge.
    pub fn is_bridge(&self) -> bool {
        matches!(self.command, Command::Mqtt(_))
    }

    /// Runs the command.
    pub async fn run(self) -> Result<Exit, Failure> {
        let settings = self.settings()?;
        if self.common.print_config {
            stdout::print(print_config(&settings))?;
            return Ok(Exit::Done);
        }
        init(&settings.broker.common)?;
        let commands = || signal::commands(Mode::SoftTimeout).context("cannot install signal handlers");
        match self.command {
            Command::Serve(_) => garenne_gateway::run(settings.broker, settings.gateway, commands()?).await,
            Command::Mqtt(_) => {
                let records = settings.gateway.record_limits();
                let GatewaySettings { group_commit, spool, .. } = settings.gateway;
                let shared = garenne_mqtt::Shared { group_commit, records, spool };
                garenne_mqtt::run(settings.broker, shared, settings.mqtt, commands()?).await
            }
            Command::Replay(args) => {
                let limits = settings.gateway.record_limits();
                replay::run(settings.broker, settings.gateway.spool, limits, *args).await
            }
            Command::Publish(args) => {
                let limits = settings.gateway.record_limits();
                publish::run(settings.broker, settings.gateway.spool, limits, args).await
            }
            Command::Simulate(args) => simulate::run(settings.broker, settings.gateway.spool, args).await,
            Command::Map(args) => map::run(settings.broker, args).await,
            Command::Spool(args) => spool::run(settings.broker, args).await,
        }
    }

    /// The settings from flags, environment and file.
    fn settings(&self) -> Result<ProducerSettings, Failure> {
        let flags = match &self.command {
            Command::Serve(args) => args.flags().map_err(|error| Failure::new(Exit::Usage, error))?,
            Command::Mqtt(args) => args.flags().map_err(|error| Failure::new(Exit::Usage, error))?,
            _ => toml::Table::new(),
        };
        Ok(load(self.common.sources(flags))?)
    }
}
