//! The binary `garenne`.

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_console::cli::Cli;

fn main() -> Exit {
    garenne_handlers::guardian::run_if_asked();
    run(Cli::parse())
}

#[tokio::main(flavor = "current_thread")]
async fn run(cli: Cli) -> Exit {
    exit::run_main("garenne", garenne_console::run(cli)).await
}
