//! The command line.

use std::time::Duration;

use clap::{Parser, Subcommand};
use garenne_common::{
    config::{CommonArgs, flag},
    shutdown::Mode,
};
use garenne_operator::args::duration;

use crate::{
    accounts::OperatorsVerb, alarms::AlarmsArgs, audit_log::AuditVerb, dashboard::DashboardArgs,
    database::DatabaseArgs, dead::DeadVerb, directives::WorkerArgs, handler::HandlerVerb, pause::PauseVerb,
    queue::QueueVerb, readings::ReadingsVerb, status::StatusArgs, task::TaskVerb, topology::TopologyVerb,
    unroutable::UnroutableVerb,
};

/// Inspects and controls a Garenne fleet.
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
    /// Options of every program.
    #[command(flatten)]
    pub common: CommonArgs,
    /// End a command that makes no progress for this long, and say what it waited for
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s", global = true)]
    pub timeout: Duration,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show queues by lane, workers, gateways and bridges
    #[command(after_help = "Examples:\n  garenne status\n  garenne status --json | jq .lanes")]
    Status(StatusArgs),
    /// Create, compare or export exchanges, queues and bindings
    #[command(subcommand)]
    Topology(TopologyVerb),
    /// Create, change, check or prune the tables of the sink postgres
    Database(DatabaseArgs),
    /// List, show, replay or drop dead letters
    #[command(subcommand)]
    Dead(DeadVerb),
    /// List, replay or drop messages that no lane's bindings matched
    #[command(subcommand)]
    Unroutable(UnroutableVerb),
    /// Stop tasks, find one by its id, or list those that wait for their time
    #[command(subcommand)]
    Task(TaskVerb),
    /// List queues and their messages, or purge a queue
    #[command(subcommand)]
    Queue(QueueVerb),
    /// Shut a worker down; it requeues unfinished tasks
    #[command(after_help = "Examples:\n  garenne drain worker-3\n  garenne drain --all --mode light --yes")]
    Drain {
        /// The worker, or all of them.
        #[command(flatten)]
        workers: WorkerArgs,
        /// light, soft, soft-timeout or hard [default: soft-timeout]
        #[arg(long, value_name = "MODE")]
        mode: Option<Mode>,
        /// Confirm that every worker is shut down [default: ask]
        #[arg(long, requires = "all")]
        yes: bool,
    },
    /// Check handlers in other languages
    #[command(subcommand)]
    Handler(HandlerVerb),
    /// Stop a worker from taking tasks until it is resumed
    #[command(after_help = "Example:\n  garenne quiet worker-3")]
    Quiet(WorkerArgs),
    /// Resume a quiet worker
    #[command(after_help = "Example:\n  garenne resume --all")]
    Resume(WorkerArgs),
    /// Pause or resume groups of tasks; other tasks of the group are deferred
    #[command(subcommand, after_help = "Example:\n  garenne group pause import-7")]
    Group(PauseVerb),
    /// Pause or resume lanes; tasks of a paused lane wait in its queue
    #[command(subcommand, after_help = "Example:\n  garenne lane pause slow")]
    Lane(PauseVerb),
    /// Pause or resume kinds of tasks; other tasks of the kind are deferred
    #[command(subcommand, after_help = "Example:\n  garenne kind pause alert.notify")]
    Kind(PauseVerb),
    /// Work on stored readings
    #[command(subcommand)]
    Readings(ReadingsVerb),
    /// List alarms, acknowledge and snooze them, and plan maintenance
    Alarms(AlarmsArgs),
    /// List operators' commands
    #[command(subcommand)]
    Audit(AuditVerb),
    /// Make lines for the file of people who may log in to the dashboard
    #[command(subcommand)]
    Operators(OperatorsVerb),
    /// Show a live view of the fleet in the terminal
    #[command(after_help = "Example:\n  garenne top --management-url http://guest:guest@127.0.0.1:15672")]
    Top,
    /// Serve a web page of the fleet, Prometheus metrics (/metrics) and worker counts for autoscalers (/scale)
    #[command(
        after_help = "Examples:\n  garenne dashboard --management-url http://guest:guest@127.0.0.1:15672\n  \
                      garenne dashboard --listen 0.0.0.0:9465 --operators /etc/garenne/operators --require-login\n  \
                      curl 'http://127.0.0.1:9465/scale/fast?objective=10s&max=50'"
    )]
    Dashboard(DashboardArgs),
    /// Print shell completions
    #[command(
        after_help = "Example:\n  garenne completions bash > ~/.local/share/bash-completion/completions/garenne"
    )]
    Completions {
        /// bash, elvish, fish, powershell or zsh
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
}

impl Cli {
    /// Settings from the flags of single commands.
    pub fn own_settings(&self) -> toml::Table {
        let mut own = toml::Table::new();
        match &self.command {
            Command::Alarms(args) => flag(&mut own, "postgres_url", args.postgres_url.as_ref()),
            Command::Database(args) => flag(&mut own, "postgres_url", args.postgres_url.as_ref()),
            Command::Readings(verb) => flag(&mut own, "postgres_url", verb.postgres_url()),
            Command::Dashboard(args) => return args.settings(),
            _ => {}
        }
        own
    }
}
