//! The binary `garenne-drill`.

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_drill::cli::Cli;

// One thread, because a child gets its parent-death signal when the thread that started it ends.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Exit {
    let cli = Cli::parse();
    exit::run_main("garenne-drill", garenne_drill::run(cli)).await
}
