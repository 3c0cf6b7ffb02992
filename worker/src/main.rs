//! The stock worker.

use clap::Parser;
use garenne_common::exit::Exit;
use garenne_worker::cli::Cli;

fn main() -> Exit {
    garenne_handlers::guardian::run_if_asked();
    garenne::cli::block_on("garenne-worker", Cli::parse().run())
}
