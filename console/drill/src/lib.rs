//! `garenne-drill`: injects faults into a worker fleet and its broker, and accounts for every task. A task that was
//! acknowledged to its sender must take effect once.
//!
//! A run starts worker processes (`fleet`), injects the faults of its `schedule` (`engine`), and keeps an `account` of
//! every task. A `drill` publishes its tasks itself. A `demo` is a run with a gateway, a recording and a narrator.
//!
//! The binary only calls [`run`]. Tests use the other public modules.

mod account;
pub mod cli;
mod demo;
pub mod die_with_parent;
mod drill;
mod engine;
mod fault;
mod fault_proxy;
mod fleet;
mod launcher;
mod load;
mod process;
mod proxied_url;
mod report;
mod run;
mod schedule;
mod screen;
mod sender;
pub mod settings;
mod timeline;

use garenne_common::{
    config,
    exit::{Exit, Failure},
    stdout,
    telemetry::tracing::init_filtered,
};
use garenne_operator::operator::Operator;

use crate::{
    cli::{Cli, Command},
    demo::Demo,
    drill::Drill,
    settings::DrillConfig,
};

/// Runs a command.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    if let Command::DieWithParent { parent, command } = &cli.command {
        return Err(die_with_parent::exec(*parent, command).into());
    }
    let settings: DrillConfig = config::load(cli.common.sources(cli.own_settings()))?;
    if cli.common.print_config {
        stdout::print(config::print_config(&settings))?;
        return Ok(Exit::Done);
    }
    // The summary says what happens; a log would repeat each lost connection.
    init_filtered(&settings.fleet.common, "off")?;
    let operator = Operator::new(settings.fleet)?;
    let config = cli.common.config.as_deref();
    match &cli.command {
        Command::Run(args) => {
            let worker_url = settings.worker_amqp_url.as_ref().unwrap_or(&operator.settings.common.amqp_url);
            run::run(Drill::start(&operator, worker_url, args, config)).await
        }
        Command::Demo(args) => run::run(Demo::start(&operator, args, config)).await,
        Command::DieWithParent { .. } => unreachable!("handled above"),
    }
}
