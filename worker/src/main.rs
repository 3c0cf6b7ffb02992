//! The stock worker.

use clap::Parser;
use garenne_common::exit::Exit;
use garenne_worker::cli::Cli;

fn main() -> Exit {
    garenne::cli::block_on("garenne-worker", Cli::parse().run())
}
