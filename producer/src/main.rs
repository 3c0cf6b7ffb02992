//! `garenne-producer`.

use clap::Parser;
use garenne_common::{
    config::print_config,
    exit::{Exit, Failure, run_main},
    shutdown::Mode,
    telemetry::tracing::init,
};
use garenne_producer::{
    cli::{Cli, Command},
    publish, replay, simulate, stop,
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
    match cli.command {
        Command::Serve(_) => {
            let commands = stop::commands(Mode::SoftTimeout)?;
            garenne_gateway::run(settings.broker, settings.gateway, commands).await
        }
        Command::Replay(args) => replay::run(settings.broker, args.options()?).await,
        Command::Publish(args) => publish::run(settings.broker, args.options()).await,
        Command::Simulate(args) => simulate::run(settings.broker, args.options()?).await,
    }
}
