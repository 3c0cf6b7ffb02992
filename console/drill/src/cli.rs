//! The command line of `garenne-drill`.

use std::{ffi::OsString, iter::repeat_n, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use garenne_common::config::{CommonArgs, flag};
use garenne_operator::args::duration;
use serde::Serialize;

use crate::{die_with_parent, fault::Fault};

/// Injects faults into a worker fleet and its broker, and accounts for every task.
#[derive(Debug, Parser)]
#[command(
    name = "garenne-drill",
    version,
    about,
    after_help = "Example:\n  garenne-drill demo --for 30s",
    arg_required_else_help = true
)]
pub struct Cli {
    /// Options of every program.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Kill, stop, pause and restart your workers and your broker, and account for every task
    #[command(after_help = "Examples:\n  garenne-drill run --tasks 20000 --seed 7\n  \
                      garenne-drill run --worker './my-worker --queue jobs' --broker-restarts 2 --broker-restart 'docker restart -t 0 rabbit'\n\n\
                      Your worker reads GARENNE_AMQP_URL and GARENNE_PREFIX and writes one JSON line with task_id to\n\
                      stdout per executed task. Effects are counted in the file DRILL_EFFECTS, if your worker\n\
                      writes one JSON line with task_id per effect to it, or in Postgres (--effects-sql).")]
    Run(Box<RunArgs>),
    /// Run a gateway, workers and a recording on this host, inject faults, and account for every reading
    #[command(
        after_help = "Examples:\n  garenne-drill demo --for 30s\n  garenne-drill demo --recording readings.csv --speed 60x --workers 5\n  garenne-drill demo --mqtt --broker-restart 'docker restart -t 0 rabbit'"
    )]
    Demo(DemoArgs),
    /// Executes a program that is killed when its parent ends; a run starts its children through this
    #[command(name = die_with_parent::COMMAND, hide = true)]
    DieWithParent {
        /// Process id of the parent
        parent: i32,
        /// The program and its arguments
        // One argument: after its first value clap takes everything as it is, also this program's own flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
}

impl Cli {
    /// Settings from the flags of single commands.
    pub(crate) fn own_settings(&self) -> toml::Table {
        let mut own = toml::Table::new();
        match &self.command {
            Command::Run(args) => {
                flag(&mut own, "postgres_url", args.postgres_url.as_ref());
                flag(&mut own, "worker_amqp_url", args.worker_amqp_url.as_ref());
            }
            Command::Demo(args) => flag(&mut own, "postgres_url", args.postgres_url.as_ref()),
            Command::DieWithParent { .. } => {}
        }
        own
    }
}

/// `garenne-drill run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Shell command that starts a worker; {name} is replaced by the worker's name [default: garenne-worker with the bench kinds]
    #[arg(long, value_name = "COMMAND")]
    pub worker: Option<String>,
    /// The workers' broker URL, if they use another user than the drill [default: --amqp-url]
    #[arg(long, value_name = "URL")]
    pub worker_amqp_url: Option<String>,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub workers: u16,
    /// Tasks to publish
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub tasks: u64,
    /// Publishers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub publishers: u16,
    /// Tasks per second of all publishers together
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// Kind of the tasks; a lane must be bound to it
    #[arg(long, value_name = "KIND", default_value = "bench.sleep")]
    pub kind: String,
    /// Payload of the tasks, JSON
    #[arg(long, value_name = "JSON", default_value = "{\"ms\":2}")]
    pub payload: String,
    /// The same seed gives the same faults at the same points
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Faults to inject.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Time without progress after which unfinished tasks count as lost
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = duration)]
    pub patience: Duration,
    /// Postgres in which effects are counted [default: none; DRILL_EFFECTS is used if the workers write it]
    #[arg(long, value_name = "URL")]
    pub postgres_url: Option<String>,
    /// Query for task ids and the number of their effects, as (text, bigint) [default: the results table]
    #[arg(long, value_name = "SQL")]
    pub effects_sql: Option<String>,
    /// Folder for logs and reports [default: a new one under the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// The number of faults of each kind, and how they are injected.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct FaultArgs {
    /// Workers killed (SIGKILL)
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub kills: u32,
    /// Workers stopped softly (SIGTERM)
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub softs: u32,
    /// Workers stopped hard (SIGQUIT)
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub hards: u32,
    /// Workers paused (SIGSTOP, then SIGCONT)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub pauses: u32,
    /// Duration of a pause, and of the stall of a network cut
    #[arg(long, value_name = "SPAN", default_value = "3s", value_parser = duration)]
    #[serde(skip)]
    pub pause_for: Duration,
    /// Broker restarts; needs --broker-restart
    #[arg(long, value_name = "N", default_value_t = 0, requires = "broker_restart")]
    pub broker_restarts: u32,
    /// Shell command that restarts the broker; it may return before the broker accepts connections
    #[arg(long, value_name = "COMMAND")]
    #[serde(skip)]
    pub broker_restart: Option<String>,
    /// Network cuts between the broker and all workers: connections stall, then are reset
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cuts: u32,
}

impl FaultArgs {
    /// Every fault as often as it is counted, kind by kind.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        [
            (self.kills, Fault::Kill),
            (self.softs, Fault::Soft),
            (self.hards, Fault::Hard),
            (self.pauses, Fault::Pause),
            (self.broker_restarts, Fault::BrokerRestart),
            (self.cuts, Fault::Cut),
        ]
        .into_iter()
        .flat_map(|(count, fault)| repeat_n(fault, count as usize))
        .collect()
    }
}

/// `garenne-drill demo`.
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
