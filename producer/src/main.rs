//! `garenne-producer`.

use std::io;

use clap::Parser;
use garenne_common::exit::{Exit, run_main};
use garenne_producer::cli::Cli;
use tokio::runtime::Builder;

fn main() -> io::Result<Exit> {
    let cli = Cli::parse();
    let mut runtime = Builder::new_multi_thread();
    if cli.is_bridge() {
        // A message passes several tasks one after the other. More threads add wake-ups, which cost more than the work.
        runtime.worker_threads(1);
    }
    let runtime = runtime.enable_all().build()?;
    Ok(runtime.block_on(run_main("garenne-producer", cli.run())))
}
