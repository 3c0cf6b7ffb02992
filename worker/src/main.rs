//! The stock worker.

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_worker::cli::{Cli, stock};

fn main() -> Exit {
    let cli = Cli::parse();
    // The broker's side of the worker: one thread is enough, handlers have a runtime of their own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("broker")
        .enable_all()
        .build()
        .expect("threads can be started");
    let exit = exit::report("garenne-worker", runtime.block_on(cli.run(stock)));
    runtime.shutdown_background();
    exit
}
