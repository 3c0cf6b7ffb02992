//! The command line of `garenne drill`.

use std::{iter::repeat_n, path::PathBuf, time::Duration};

use clap::Args;
use garenne_chaos::Fault;
use serde::Serialize;

use crate::args::duration;

/// `garenne drill`.
#[derive(Args, Clone, Debug)]
pub struct DrillArgs {
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
    pub(super) fn faults(&self) -> Vec<Fault> {
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
