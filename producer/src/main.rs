//! `garenne-producer`.

use clap::Parser;
use garenne_common::{
    config::print_config,
    exit::{Exit, Failure, run_main},
    telemetry::tracing::init,
};
use garenne_producer::{
    cli::{Cli, Command},
    gateway, publish, replay, simulate,
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
    init(&settings.common)?;
    match cli.command {
        Command::Serve(_) => gateway::run::run(settings).await,
        Command::Replay(args) => replay::run(settings, args.options()?).await,
        Command::Publish(args) => publish::run(settings, args.options()).await,
        Command::Simulate(args) => simulate::run(settings, args.options()?).await,
    }
}
