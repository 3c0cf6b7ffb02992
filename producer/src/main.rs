//! `garenne-producer`.

use clap::Parser;
use garenne_common::exit::{Exit, run_main};
use garenne_producer::cli::Cli;

#[tokio::main]
async fn main() -> Exit {
    run_main("garenne-producer", Cli::parse().run()).await
}
