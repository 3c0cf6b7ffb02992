//! The command line of `garenne demo`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::args::duration;

/// `garenne demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Recording to replay, CSV or NDJSON [default: half a day in a greenhouse, built in]
    #[arg(long, value_name = "FILE")]
    pub recording: Option<PathBuf>,
    /// End after this long [default: continue until Ctrl-C]
    #[arg(long = "for", value_name = "SPAN", value_parser = duration)]
    pub lasts: Option<Duration>,
    /// How many times faster than recorded, such as 1440x [default: one pass takes 30 s]
    #[arg(long, value_name = "SPEED", value_parser = speed)]
    pub speed: Option<f64>,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    pub workers: u16,
    /// Folder for logs, receipts and the audit [default: a new one under the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Send the readings as messages of Zigbee2MQTT through a Mosquitto and an MQTT bridge, and kill these too
    #[arg(long)]
    pub mqtt: bool,
    /// Shell command that kills and starts the broker, once, with --mqtt; it may return before the broker accepts connections
    #[arg(long, value_name = "COMMAND", requires = "mqtt")]
    pub broker_restart: Option<String>,
    /// Postgres in which readings are stored [default: none, NDJSON files only]
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
}

fn speed(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.strip_suffix('x').unwrap_or(text).parse().ok();
    factor
        .filter(|factor| factor.is_finite() && *factor > 0.0)
        .ok_or_else(|| "expected how many times faster than recorded, such as 60x".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_a_positive_factor() {
        assert_eq!((speed("60x"), speed("0.5")), (Ok(60.0), Ok(0.5)));
        for text in ["0x", "-1", "fast", "inf"] {
            assert_eq!(speed(text).unwrap_err(), "expected how many times faster than recorded, such as 60x");
        }
    }
}
