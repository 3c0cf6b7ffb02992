//! The command line tool `garenne`: inspects and controls a fleet.
//!
//! The binary only calls [`run`]. Tests use the other modules.

pub mod accounts;
pub mod alarms;
pub mod audit_log;
pub mod cli;
mod confirm;
pub mod dashboard;
pub mod database;
pub mod dead;
pub mod diagnose;
pub mod directives;
pub mod fleet;
pub mod handler;
pub mod lane_sample;
mod look;
mod missing_right;
pub mod monitor;
pub mod pause;
pub mod progress;
pub mod queue;
pub mod readings;
pub mod scale;
pub mod settings;
pub mod status;
mod stream_walk;
pub mod task;
pub mod top;
pub mod topology;
pub mod unroutable;
pub mod worker_command;

use clap::CommandFactory;
use garenne_common::{
    config,
    exit::{Exit, Failure},
    stdout,
    telemetry::tracing::init_filtered,
};
use garenne_operator::{operator::Operator, waits};

use crate::{
    cli::{Cli, Command},
    pause::Paused,
    settings::ConsoleConfig,
    worker_command::WorkerCommand,
};

/// Runs a command.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    if let Command::Completions { shell } = cli.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "garenne", &mut script);
        stdout::print(String::from_utf8_lossy(&script))?;
        return Ok(Exit::Done);
    }
    if let Command::Operators(verb) = &cli.command {
        return accounts::run(verb);
    }
    if let Command::Handler(verb) = cli.command {
        return handler::run(verb).await;
    }
    let settings: ConsoleConfig = config::load(cli.common.sources(cli.own_settings()))?;
    if cli.common.print_config {
        stdout::print(config::print_config(&settings))?;
        return Ok(Exit::Done);
    }
    // The dashboard logs as a server does; a log would overwrite the screen of `top`.
    if !matches!(cli.command, Command::Dashboard(_) | Command::Top) {
        init_filtered(&settings.fleet.common, audit_log::COMMAND_LINE_LOG)?;
    }
    let operator = Operator::new(settings.fleet.clone())?;
    match cli.command {
        Command::Top => top::run(operator, settings.scale.objective).await,
        Command::Dashboard(_) => dashboard::run(operator, settings).await,
        command => {
            let answer = format!("an answer of the broker at {}", operator.broker.address());
            let status = if let Command::Status(args) = &command { Some(args.clone()) } else { None };
            let running = run_once(&operator, &settings, command);
            let ended = waits::limited(cli.timeout, answer, running).await;
            if let (Some(args), Err(failure)) = (status, &ended) {
                status::print_failure(&operator, settings.scale.objective, &args, failure)?;
            }
            ended.map_err(missing_right::named)
        }
    }
}

/// Runs a command that ends by itself.
async fn run_once(operator: &Operator, settings: &ConsoleConfig, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Status(args) => status::run(operator, settings.scale.objective, &args).await,
        Command::Topology(verb) => topology::run(operator, verb).await,
        Command::Database(args) => database::run(operator, &args).await,
        Command::Alarms(args) => alarms::run(operator, &args).await,
        Command::Audit(verb) => audit_log::run(operator, verb).await,
        Command::Dead(verb) => dead::run(operator, verb).await,
        Command::Unroutable(verb) => unroutable::run(operator, verb).await,
        Command::Task(verb) => task::run(operator, verb).await,
        Command::Queue(verb) => queue::run(operator, verb).await,
        Command::Drain { workers, mode, yes } => directives::drain(operator, &workers, mode, yes).await,
        Command::Quiet(workers) => directives::send(operator, &workers, WorkerCommand::Quiet).await,
        Command::Resume(workers) => directives::send(operator, &workers, WorkerCommand::Resume).await,
        Command::Group(verb) => pause::run(operator, Paused::Group, verb).await,
        Command::Lane(verb) => pause::run(operator, Paused::Lane, verb).await,
        Command::Kind(verb) => pause::run(operator, Paused::Kind, verb).await,
        Command::Readings(verb) => readings::run(operator, verb).await,
        Command::Completions { .. }
        | Command::Operators(_)
        | Command::Handler(_)
        | Command::Top
        | Command::Dashboard(_) => {
            unreachable!("handled above")
        }
    }
}
