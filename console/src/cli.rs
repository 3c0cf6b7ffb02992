//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use garenne_common::{
    config::{CommonArgs, flag},
    shutdown::Mode,
};
use garenne_protocol::topology::BrokerVersion;

use crate::{dead::cli::DeadVerb, demo::DemoArgs, drill::DrillArgs, leash::LeashArgs};

/// Looks at a Garenne fleet and steers it.
#[derive(Debug, Parser)]
#[command(
    name = "garenne",
    version,
    about,
    after_help = "Example:\n  garenne status --amqp-url amqp://guest:guest@127.0.0.1:5672/%2f",
    subcommand_required = false,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What every program takes.
    #[command(flatten)]
    pub common: CommonArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What waits, runs, retries and died, lane by lane
    #[command(after_help = "Examples:\n  garenne status\n  garenne status --json | jq .lanes")]
    Status(StatusArgs),
    /// Exchanges and queues: create them, compare them with the broker's, print them
    Topology {
        /// What to do with it.
        #[command(subcommand)]
        verb: TopologyVerb,
    },
    /// Dead letters: look at them, send them back to work, drop them
    Dead {
        /// What to do with them.
        #[command(subcommand)]
        verb: DeadVerb,
    },
    /// Single tasks
    Task {
        /// What to do with them.
        #[command(subcommand)]
        verb: TaskVerb,
    },
    /// Stop a worker in order: it hands back what it did not do
    #[command(after_help = "Examples:\n  garenne drain worker-3\n  garenne drain --all --mode light")]
    Drain {
        /// Which worker.
        #[command(flatten)]
        which: WhichArgs,
        /// light, soft, soft-timeout or hard [default: soft-timeout]
        #[arg(long, value_name = "MODE")]
        mode: Option<Mode>,
    },
    /// Let a worker take no more work until it is told to resume
    #[command(after_help = "Example:\n  garenne quiet worker-3")]
    Quiet(WhichArgs),
    /// Let a quiet worker go on
    #[command(after_help = "Example:\n  garenne resume --all")]
    Resume(WhichArgs),
    /// Groups of tasks
    Group {
        /// What to do with them.
        #[command(subcommand)]
        verb: GroupVerb,
    },
    /// The fleet in this terminal, live
    #[command(after_help = "Example:\n  garenne top --management-url http://guest:guest@127.0.0.1:15672")]
    Top,
    /// The fleet in a browser, its queues for Prometheus (/metrics), workers needed for an autoscaler (/scale)
    #[command(
        after_help = "Examples:\n  garenne dashboard --management-url http://guest:guest@127.0.0.1:15672\n  \
                      garenne dashboard --listen 0.0.0.0:9465 --admin-token-file /run/secrets/token\n  \
                      curl 'http://127.0.0.1:9465/scale/fast?objective=10s&max=50'"
    )]
    Dashboard(DashboardArgs),
    /// Completions of this command line, for a shell
    #[command(
        after_help = "Example:\n  garenne completions bash > ~/.local/share/bash-completion/completions/garenne"
    )]
    Completions {
        /// bash, elvish, fish, powershell or zsh
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// A gateway, workers and a recording on this machine, with trouble on the way and an account at the end
    #[command(
        after_help = "Examples:\n  garenne demo --for 30s\n  garenne demo --recording readings.csv --speed 60x --workers 5"
    )]
    Demo(DemoArgs),
    /// Kills, stops, pauses and restarts against your broker and your worker, and an account of every task
    #[command(after_help = "Examples:\n  garenne drill --tasks 20000 --seed 7\n  \
                      garenne drill --worker './my-worker --queue jobs' --broker-restarts 2 --broker-restart 'docker restart -t 0 rabbit'\n\n\
                      Your worker reads GARENNE_AMQP_URL and GARENNE_PREFIX and writes one JSON line with task_id to\n\
                      stdout per task it runs. Effects are counted in the file DRILL_EFFECTS names, if your\n\
                      worker writes one JSON line with task_id per effect to it, or in Postgres (--effects-sql).")]
    Drill(Box<DrillArgs>),
    #[command(hide = true)]
    #[expect(missing_docs, reason = "clap would take a comment for the command's description")]
    Leash(LeashArgs),
}

/// `garenne status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Also ask this worker's admin port, for what its heartbeats do not reach; repeatable
    #[arg(long = "worker", value_name = "URL")]
    pub workers: Vec<String>,
    /// Listen for so long, also for gateways, which cannot be asked and beat every 2s [default: until every worker has answered, at most 1s]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub wait: Option<Duration>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `garenne task …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TaskVerb {
    /// Stop tasks wherever they are: queued, running, or waiting for a retry
    #[command(after_help = "Examples:\n  garenne task stop 0198c5c2-…\n  garenne task stop --group import-7")]
    Stop(StopArgs),
}

/// `garenne dashboard`.
#[derive(Args, Clone, Debug, Default)]
pub struct DashboardArgs {
    /// Where browsers find it [default: 127.0.0.1:9465]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
}

/// `garenne group …`.
#[derive(Clone, Debug, Subcommand)]
pub enum GroupVerb {
    /// Start nothing more of a group, on any worker, until it is resumed; what runs goes on
    #[command(after_help = "Example:\n  garenne group pause import-7")]
    Pause {
        /// The group
        group: String,
    },
    /// Go on with a group
    #[command(after_help = "Example:\n  garenne group resume import-7")]
    Resume {
        /// The group
        group: String,
    },
}

/// `garenne task stop`.
#[derive(Args, Clone, Debug, Default)]
pub struct StopArgs {
    /// Task ids
    #[arg(value_name = "ID", required_unless_present = "group")]
    pub ids: Vec<String>,
    /// Every task of this group that was published before now; repeatable
    #[arg(long, value_name = "NAME")]
    pub group: Vec<String>,
}

/// One worker or all of them.
#[derive(Args, Clone, Debug, Default)]
#[group(required = true, multiple = false)]
pub struct WhichArgs {
    /// The worker's id
    #[arg(value_name = "WORKER")]
    pub worker: Option<String>,
    /// Every worker of the fleet
    #[arg(long)]
    pub all: bool,
}

/// `garenne topology …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TopologyVerb {
    /// Create what is missing (needs the configure permission)
    #[command(after_help = "Example:\n  garenne topology apply --amqp-url amqp://admin:…@broker:5672/%2f")]
    Apply,
    /// Compare the broker's exchanges, queues and bindings with what the settings want; 1 if they differ
    #[command(
        after_help = "Example:\n  garenne topology check --management-url http://guest:guest@127.0.0.1:15672"
    )]
    Check,
    /// Print it for a boot import (load_definitions)
    #[command(
        after_help = "Example:\n  garenne topology export --format definitions --broker-version 4.0 > definitions.json"
    )]
    Export {
        /// What it is printed as
        #[arg(long, value_enum, default_value_t = ExportFormat::Definitions)]
        format: ExportFormat,
        /// The broker's version, such as 3.13 or 4.0; asked of the broker when absent
        #[arg(long, value_name = "VERSION")]
        broker_version: Option<BrokerVersion>,
    },
}

/// What the topology is printed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// RabbitMQ's definitions file, JSON.
    Definitions,
}

impl Cli {
    /// Settings that this program's own flags give.
    pub fn own_settings(&self) -> toml::Table {
        let mut own = toml::Table::new();
        let postgres = match &self.command {
            Command::Demo(args) => args.postgres_url.as_ref(),
            Command::Drill(args) => args.postgres_url.as_ref(),
            _ => None,
        };
        flag(&mut own, "postgres_url", postgres);
        if let Command::Drill(args) = &self.command {
            flag(&mut own, "worker_amqp_url", args.worker_amqp_url.as_ref());
        }
        if let Command::Dashboard(DashboardArgs { listen: Some(listen) }) = &self.command {
            let table = [("listen".to_owned(), toml::Value::String(listen.clone()))].into_iter().collect();
            own.insert("dashboard".to_owned(), toml::Value::Table(table));
        }
        own
    }
}

/// Reads a span such as `90s`, `1h` or `2d`.
///
/// # Errors
/// One line saying how one looks.
pub fn span(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; expected a span such as 90s, 1h or 2d"))
}
