//! The flags of `mqtt`, the bridge that is in `garenne-mqtt`.

use std::{ops::Not, path::PathBuf};

use clap::Args;
use serde::Serialize;

use crate::args::SpoolFlags;

/// Flags of `mqtt`. Each has the name of its setting in the table `mqtt`.
#[derive(Debug, Args, Serialize)]
pub(crate) struct MqttArgs {
    /// MQTT broker: mqtt:// or mqtts://, with user and password if needed; better in GARENNE_MQTT__URL or
    /// GARENNE_MQTT__URL_FILE
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Filter of topics, such as zigbee2mqtt/+ or $share/GROUP/zigbee2mqtt/+; repeatable
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subscribe: Vec<String>,
    /// Map: a TOML file, or a shipped one such as builtin:zigbee2mqtt; repeatable, the first with a rule counts
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    maps: Vec<String>,
    /// Version of MQTT: 3.1.1 or 5 [default: 3.1.1]
    #[arg(long = "protocol", value_name = "VERSION")]
    version: Option<String>,
    /// Client id, which names the session on the MQTT broker; must be stable and unique [default: PREFIX-mqtt-HOST]
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Take retained messages too
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    retained: bool,
    /// Most messages received and not stored yet [default: 256]
    #[arg(long, value_name = "N")]
    in_flight: Option<u16>,
    /// They are not in the table `mqtt`.
    #[command(flatten)]
    #[serde(skip)]
    spool: SpoolFlags,
}

/// Certificates for `mqtts://`.
#[derive(Debug, Args, Serialize)]
struct TlsArgs {
    /// Certificate authorities of the MQTT broker in PEM, in addition to the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl MqttArgs {
    /// The flags as settings.
    pub(crate) fn flags(&self) -> Result<toml::Table, toml::ser::Error> {
        let mut mqtt = toml::Table::try_from(self)?;
        // An empty table would count as given.
        if mqtt.get("tls").and_then(toml::Value::as_table).is_some_and(toml::Table::is_empty) {
            mqtt.remove("tls");
        }
        let mut flags = toml::Table::try_from(&self.spool)?;
        flags.insert("mqtt".to_owned(), mqtt.into());
        Ok(flags)
    }
}
