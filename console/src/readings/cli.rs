//! The command line of `garenne readings`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use garenne_common::exit::{Exit, Failure};
use garenne_protocol::sensor::Timestamp;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use garenne_readings::Flag;

use super::{
    correction::{Amendment, Correction},
    selection::Selection,
};
use crate::confirm::confirm;

/// `garenne readings …`.
#[derive(Clone, Debug, Subcommand)]
pub enum ReadingsVerb {
    /// Show the newest reading of each device's metric, with its age
    #[command(
        after_help = "Examples:\n  garenne readings latest\n  garenne readings latest --device 'greenhouse-*' --json | jq .age_seconds"
    )]
    Latest(LatestArgs),
    /// List readings of a device, newest first
    #[command(
        after_help = "Example:\n  garenne readings list --device greenhouse-1 --metric temperature --from 2026-03-01T08:00:00Z"
    )]
    List(ListArgs),
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
    /// Flag stored readings: their values stay, rules no longer judge them, and rollups only count them
    #[command(
        after_help = "Example:\n  garenne readings flag --device greenhouse-1 --metric temperature \\\n    \
        --from 2026-03-01T08:00:00Z --to 2026-03-01T09:00:00Z --reason 'door open for repairs' --dry-run"
    )]
    Flag(FlagArgs),
    /// Give stored readings another value; the raw value stays
    #[command(
        after_help = "Examples:\n  garenne readings amend --device boiler-2 --metric pressure \\\n    \
        --from 2026-03-01T08:00:00Z --to 2026-03-01T08:00:01Z --value 3.1 --reason 'read from the gauge' --yes\n  \
        garenne readings amend --device 'greenhouse-*' --metric temperature \\\n    \
        --from 2026-03-01T00:00:00Z --to 2026-03-08T00:00:00Z --offset -0.4 --reason 'sensors in the sun' --yes"
    )]
    Amend(AmendArgs),
    /// Delete stored readings; a task that is repeated does not store them again
    #[command(
        after_help = "Example:\n  garenne readings delete --device test-7 --metric temperature \\\n    \
        --from 2026-03-01T00:00:00Z --to 2026-03-02T00:00:00Z --reason 'a test on the bench' --yes"
    )]
    Delete(CorrectArgs),
    /// List corrections, newest first
    #[command(
        after_help = "Example:\n  garenne readings corrections --device greenhouse-1 --json | jq .was_value"
    )]
    Corrections(CorrectionsArgs),
}

/// `garenne readings latest`.
#[derive(Args, Clone, Debug)]
pub struct LatestArgs {
    /// Database of the workers, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// This device only, or all that begin with a text: 'greenhouse-*'
    #[arg(long, value_name = "PATTERN")]
    pub device: Option<String>,
    /// This metric only
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

impl LatestArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        select(self.device.as_deref(), self.metric.clone(), None, None)
    }
}

/// `garenne readings list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Database of the workers, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// Readings of this device, or of all that begin with a text: 'greenhouse-*'
    #[arg(long, value_name = "DEVICE")]
    pub device: String,
    /// Readings of this metric only
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Readings of this time and later, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub from: Option<Timestamp>,
    /// Readings before this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub to: Option<Timestamp>,
    /// List the newest N only
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u32,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

impl ListArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        select(Some(&self.device), self.metric.clone(), self.from, self.to)
    }
}

/// The readings that arguments select.
fn select(
    device: Option<&str>,
    metric: Option<String>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> Result<Selection, Failure> {
    Selection::new(device, metric, from, to).map_err(|error| Failure::new(Exit::Usage, error))
}

/// The readings that a command takes: all, unless they are limited.
#[derive(Args, Clone, Debug)]
pub struct RangeArgs {
    /// Database of the workers, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// Readings of this device only, or of all that begin with a text: 'greenhouse-*'
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Readings of this metric only
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Readings of this time and later, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub from: Option<Timestamp>,
    /// Readings before this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub to: Option<Timestamp>,
}

impl RangeArgs {
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        select(self.device.as_deref(), self.metric.clone(), self.from, self.to)
    }
}

/// The readings that a command corrects.
#[derive(Args, Clone, Debug)]
pub struct CorrectArgs {
    /// Database of the workers, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// Readings of this device, or of all that begin with a text: 'greenhouse-*'
    #[arg(long, value_name = "DEVICE")]
    pub device: String,
    /// Readings of this metric
    #[arg(long, value_name = "METRIC")]
    pub metric: String,
    /// Readings of this time and later, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub from: Timestamp,
    /// Readings before this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub to: Timestamp,
    /// Why, kept with each reading; 1 to 500 characters
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
    /// Count what would change, without changing it
    #[arg(long)]
    pub dry_run: bool,
    /// Confirm the change [default: ask]
    #[arg(long)]
    pub yes: bool,
    /// Print the counts as a JSON object
    #[arg(long)]
    pub json: bool,
}

impl CorrectArgs {
    /// As the record of the command names them.
    pub(super) fn record(&self) -> Value {
        json!({
            "device": self.device, "metric": self.metric, "from": rfc3339(Some(self.from)),
            "to": rfc3339(Some(self.to)), "reason": self.reason,
        })
    }

    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        select(Some(&self.device), Some(self.metric.clone()), Some(self.from), Some(self.to))
    }

    /// Checks that the correction is confirmed or a dry run.
    pub(super) fn confirmed(&self, correction: Correction) -> Result<(), Failure> {
        let consequence = format!("{} changes stored readings", correction.name());
        confirm(&consequence, "check with --dry-run, then repeat with --yes", self.yes || self.dry_run)
    }
}

/// `garenne readings flag`.
#[derive(Args, Clone, Debug)]
pub struct FlagArgs {
    /// The readings
    #[command(flatten)]
    pub range: CorrectArgs,
    /// Flag that excludes the values: impossible, out-of-range or not-calibrated
    #[arg(long = "as", value_name = "FLAG", default_value = "impossible",
          value_parser = ["impossible", "out-of-range", "not-calibrated"])]
    pub flag: String,
}

impl FlagArgs {
    pub(super) fn flag(&self) -> Flag {
        self.flag.parse().expect("one of the names that the command line allows")
    }
}

/// `garenne readings amend`.
#[derive(Args, Clone, Debug)]
pub struct AmendArgs {
    /// The readings
    #[command(flatten)]
    pub range: CorrectArgs,
    /// The value, in the unit that is stored
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, conflicts_with_all = ["factor", "offset"],
          required_unless_present_any = ["factor", "offset"])]
    pub value: Option<f64>,
    /// Multiply the present value, before the offset [default: 1]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub factor: Option<f64>,
    /// Add to the present value, in the unit that is stored [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub offset: Option<f64>,
    /// Calibration file of the workers, whose codes and ranges flag the values too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub calibration: Option<PathBuf>,
}

impl AmendArgs {
    pub(super) fn amendment(&self) -> Result<Amendment, Failure> {
        for (name, number) in [("value", self.value), ("factor", self.factor), ("offset", self.offset)] {
            if let Some(number) = number.filter(|number| !number.is_finite()) {
                return Err(Failure::new(
                    Exit::Usage,
                    format_args!("--{name}: {number} is not a finite number"),
                ));
            }
        }
        Ok(match self.value {
            Some(value) => Amendment::Value(value),
            None => {
                Amendment::Linear { factor: self.factor.unwrap_or(1.0), offset: self.offset.unwrap_or(0.0) }
            }
        })
    }
}

/// `garenne readings corrections`.
#[derive(Args, Clone, Debug)]
pub struct CorrectionsArgs {
    /// The readings that were corrected.
    #[command(flatten)]
    pub range: RangeArgs,
    /// How many rows to list, at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Print one JSON object per corrected reading and line, with the reading as it was
    #[arg(long)]
    pub json: bool,
}

/// A reason as people give it.
fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.chars().count() {
        0 => Err("the reason is empty".to_owned()),
        count @ 501.. => Err(format!("the reason has {count} characters, 500 are allowed")),
        _ if text.chars().any(char::is_control) => Err("the reason has control characters".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn rfc3339(time: Option<Timestamp>) -> Option<String> {
    time.map(OffsetDateTime::from).and_then(|it| it.format(&Rfc3339).ok())
}

impl ReadingsVerb {
    /// The database of the command.
    pub fn postgres_url(&self) -> Option<&String> {
        match self {
            Self::Latest(args) => args.postgres_url.as_ref(),
            Self::List(args) => args.postgres_url.as_ref(),
            Self::Recalibrate(args) => args.range.postgres_url.as_ref(),
            Self::Flag(args) => args.range.postgres_url.as_ref(),
            Self::Amend(args) => args.range.postgres_url.as_ref(),
            Self::Delete(range) => range.postgres_url.as_ref(),
            Self::Corrections(args) => args.range.postgres_url.as_ref(),
        }
    }
}

/// `garenne readings recalibrate`.
#[derive(Args, Clone, Debug)]
pub struct RecalibrateArgs {
    /// Calibration of the workers, TOML; readings without a rule become as sent
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub calibration: PathBuf,
    /// The readings, and the values derived from them.
    #[command(flatten)]
    pub range: RangeArgs,
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
        json!({
            "calibration": self.calibration, "device": self.range.device, "metric": self.range.metric,
            "from": rfc3339(self.range.from), "to": rfc3339(self.range.to),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_short_line() {
        assert_eq!(reason(" door open "), Ok("door open".to_owned()));
        assert_eq!(reason("  ").unwrap_err(), "the reason is empty");
        assert_eq!(reason(&"x".repeat(501)).unwrap_err(), "the reason has 501 characters, 500 are allowed");
        assert_eq!(reason("a\u{7}b").unwrap_err(), "the reason has control characters");
    }
}
