//! The command line of `garenne readings`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::sensor::Timestamp;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::selection::Selection;

/// `garenne readings …`.
#[derive(Clone, Debug, Subcommand)]
pub enum ReadingsVerb {
    /// Compute stored readings again from their raw values with a calibration file
    ///
    /// Give the workers the file first. Values, units, flags and versions become what storing with the file would have
    /// given, and so do the values derived from them. Several devices are computed at once. Each batch is a transaction:
    /// the command can be interrupted, and run again. A device that fails does not stop the others.
    #[command(after_help = "Examples:\n  \
        garenne readings recalibrate --calibration calibration.toml --dry-run\n  \
        garenne readings recalibrate --calibration calibration.toml --device 'greenhouse-*' --metric temperature \\\n    \
        --from 2026-03-01T00:00:00Z --to 2026-09-01T00:00:00Z")]
    Recalibrate(RecalibrateArgs),
}

/// `garenne readings recalibrate`.
#[derive(Args, Clone, Debug)]
pub struct RecalibrateArgs {
    /// Database of the workers, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// Calibration of the workers, TOML; readings without a rule become as sent
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub calibration: PathBuf,
    /// Readings of this device only, or of all that begin with a text: 'greenhouse-*'
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Readings of this metric only, and the values derived from them
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Readings of this time and later, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub from: Option<Timestamp>,
    /// Readings before this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub to: Option<Timestamp>,
    /// Devices that are computed at once, 1 to 16; each takes a connection to the database
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub jobs: u16,
    /// Count what would change, without changing it
    #[arg(long)]
    pub dry_run: bool,
    /// Print the counts as a JSON object
    #[arg(long)]
    pub json: bool,
}

impl RecalibrateArgs {
    /// As the record of the command names them.
    pub(super) fn record(&self) -> Value {
        let time =
            |time: Option<Timestamp>| time.map(OffsetDateTime::from).and_then(|it| it.format(&Rfc3339).ok());
        json!({
            "calibration": self.calibration, "device": self.device, "metric": self.metric,
            "from": time(self.from), "to": time(self.to),
        })
    }

    /// The readings that the arguments select.
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        let (device, metric) = (self.device.as_deref(), self.metric.clone());
        Selection::new(device, metric, self.from, self.to).map_err(|error| Failure::new(Exit::Usage, error))
    }
}
