//! The command line.

use clap::{Parser, Subcommand};
use garenne_common::{
    config::{CommonArgs, flag},
    shutdown::Mode,
};

use crate::{
    dashboard::DashboardArgs,
    dead::DeadVerb,
    demo::DemoArgs,
    directives::{GroupVerb, TaskVerb, WorkerArgs},
    drill::DrillArgs,
    leash::LeashArgs,
    status::StatusArgs,
    topology::TopologyVerb,
};

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
        which: WorkerArgs,
        /// light, soft, soft-timeout or hard [default: soft-timeout]
        #[arg(long, value_name = "MODE")]
        mode: Option<Mode>,
    },
    /// Let a worker take no more work until it is told to resume
    #[command(after_help = "Example:\n  garenne quiet worker-3")]
    Quiet(WorkerArgs),
    /// Let a quiet worker go on
    #[command(after_help = "Example:\n  garenne resume --all")]
    Resume(WorkerArgs),
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
