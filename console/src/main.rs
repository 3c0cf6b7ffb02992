//! The binary `garenne`.

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_console::cli::Cli;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Exit {
    let cli = Cli::parse();
    exit::run_main("garenne", garenne_console::run(cli)).await
}
