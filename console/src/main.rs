//! `garenne`, the operator's tool. Everything it does is in the library beside it.

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_console::cli::Cli;

// One thread: it is a tool that mostly waits, and a child's parent-death signal follows the thread
// that started it.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Exit {
    let cli = Cli::parse();
    exit::run_main("garenne", garenne_console::run(cli)).await
}
