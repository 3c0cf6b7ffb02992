//! The command line of `garenne alarms`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use garenne_common::pattern::NamePattern;
use garenne_operator::args::duration;
use garenne_protocol::sensor::Timestamp;
use strum::IntoStaticStr;

/// `garenne alarms …`.
#[derive(Args, Clone, Debug)]
pub struct AlarmsArgs {
    /// Database of the workers, such as postgres://user:password@127.0.0.1/garenne
    #[arg(long, value_name = "URL", global = true)]
    pub postgres_url: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub verb: AlarmsVerb,
}

/// What `garenne alarms` does.
#[derive(Clone, Debug, Subcommand)]
pub enum AlarmsVerb {
    /// List alarms, open ones first, then the newest
    #[command(after_help = "Examples:\n  garenne alarms list --open --severity critical\n  \
                            garenne alarms list --device 'greenhouse-*' --json | jq .id")]
    List(ListArgs),
    /// Acknowledge an open alarm: it sends no more reminders
    #[command(after_help = "Example:\n  garenne alarms ack 0199c2f4-… --by anna")]
    Ack(ChangeArgs),
    /// Let an open alarm send no notices for some time; one follows if it is open then
    #[command(after_help = "Example:\n  garenne alarms snooze 0199c2f4-… --for 1h")]
    Snooze {
        /// The alarm.
        #[command(flatten)]
        change: ChangeArgs,
        /// For how long, such as 30m or 2h; at most 30 days
        #[arg(long = "for", value_name = "TIME", value_parser = duration)]
        time: Duration,
    },
    /// End a snooze now; a notice follows if the alarm is open
    #[command(after_help = "Example:\n  garenne alarms unsnooze 0199c2f4-…")]
    Unsnooze(ChangeArgs),
    /// Times in which the alarms of devices send no notices
    #[command(subcommand)]
    Maintenance(MaintenanceVerb),
}

/// `garenne alarms list`.
#[derive(Args, Clone, Debug, Default)]
pub struct ListArgs {
    /// Only alarms that are open
    #[arg(long)]
    pub open: bool,
    /// Only alarms of this device, or of all that begin with a text: 'greenhouse-*'
    #[arg(long, value_name = "DEVICE", value_parser = NamePattern::parse)]
    pub device: Option<NamePattern>,
    /// Only alarms of this severity; may be repeated
    #[arg(long, value_name = "SEVERITY")]
    pub severity: Vec<Severity>,
    /// How many alarms to list, at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Print one JSON object per alarm and line
    #[arg(long)]
    pub json: bool,
}

/// An alarm that is changed, and who changes it.
#[derive(Args, Clone, Debug)]
pub struct ChangeArgs {
    /// The alarm's id
    #[arg(value_name = "ID")]
    pub id: String,
    /// Who does this [default: the user's name]
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}

/// How urgent an alarm is.
#[derive(Clone, Copy, Debug, IntoStaticStr, ValueEnum)]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    Info,
    Warning,
    Critical,
}

/// `garenne alarms maintenance …`.
#[derive(Clone, Debug, Subcommand)]
pub enum MaintenanceVerb {
    /// Add a maintenance window
    #[command(
        after_help = "Examples:\n  garenne alarms maintenance add --device 'boiler-*' --for 2h --reason 'new burner'\n  \
        garenne alarms maintenance add --device press-7 --from 2026-12-01T06:00:00Z --to 2026-12-01T09:00:00Z --reason inspection"
    )]
    Add(AddArgs),
    /// List maintenance windows that have not ended
    List {
        /// Also those that have ended, the newest 1,000
        #[arg(long)]
        all: bool,
        /// Print one JSON object per window and line
        #[arg(long)]
        json: bool,
    },
    /// End a maintenance window now; notices of alarms that are open follow
    End(ChangeArgs),
}

/// `garenne alarms maintenance add`.
#[derive(Args, Clone, Debug)]
pub struct AddArgs {
    /// The device, or all that begin with a text: 'boiler-*'
    #[arg(long, value_name = "DEVICE", value_parser = NamePattern::parse)]
    pub device: NamePattern,
    /// Begin, RFC 3339 [default: now]
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    pub from: Option<Timestamp>,
    /// End, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse, required_unless_present = "time")]
    pub to: Option<Timestamp>,
    /// For how long, instead of --to
    #[arg(long = "for", id = "time", value_name = "TIME", value_parser = duration, conflicts_with = "to")]
    pub time: Option<Duration>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Who does this [default: the user's name]
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alarms {
        #[command(flatten)]
        _args: AlarmsArgs,
    }

    #[test]
    fn a_device_that_is_no_pattern_is_refused_by_name() {
        for verb in [&["list"][..], &["maintenance", "add", "--for", "1h", "--reason", "r"]] {
            let refused = |device: &str| {
                let parsed = Alarms::try_parse_from([&["alarms"], verb, &["--device", device]].concat());
                parsed.err().map(|error| error.to_string())
            };
            let error = refused("boiler-*-1").unwrap();
            let problem = "invalid value 'boiler-*-1' for '--device <DEVICE>': \"boiler-*-1\"; expected a name, or a prefix";
            assert!(error.contains(problem), "{error}");
            assert!(refused("").is_some());
            assert_eq!((refused("boiler-*"), refused("boiler-1")), (None, None));
        }
    }
}
