//! `garenne-producer`.

use clap::Parser;
use garenne_common::{
    config::print_config,
    exit::{Exit, Failure, run_main},
    shutdown::{Mode, signal},
    telemetry::tracing::init,
};
use garenne_producer::{
    cli::{Cli, Command},
    publish, replay, simulate,
};

#[tokio::main]
async fn main() -> Exit {
    run_main("garenne-producer", run(Cli::parse())).await
}

async fn run(cli: Cli) -> Result<Exit, Failure> {
    let settings = cli.settings()?;
    if cli.common.print_config {
        print!("{}", print_config(&settings));
        return Ok(Exit::Done);
    }
    init(&settings.broker.common)?;
    let mode = match cli.command {
        Command::Serve(_) => Mode::SoftTimeout,
        _ => Mode::Soft,
    };
    let (sender, commands) = signal::commands(mode)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot install signal handlers: {error}")))?;
    match cli.command {
        Command::Serve(_) => {
            garenne_gateway::run(settings.broker, settings.gateway, (sender, commands)).await
        }
        Command::Replay(args) => replay::run(settings.broker, args.options()?, commands).await,
        Command::Publish(args) => publish::run(settings.broker, args.options(), commands).await,
        Command::Simulate(args) => simulate::run(settings.broker, args.options()?, commands).await,
    }
}
