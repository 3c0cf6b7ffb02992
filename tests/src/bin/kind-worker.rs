//! A worker of the library with handlers for the kinds in `TEST_KINDS` and for no other; otherwise the
//! stock worker's command line. Each task takes `ms` milliseconds.

use std::{env, time::Duration};

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_worker::{TaskContext, TaskError, TaskOptions, WorkerBuilder, cli::Cli, json_payload};
use serde::Deserialize;

#[derive(Deserialize)]
struct Wait {
    ms: u64,
}
json_payload!(Wait, "test.wait");

async fn wait(_: TaskContext, task: Wait) -> Result<serde_json::Value, TaskError> {
    tokio::time::sleep(Duration::from_millis(task.ms)).await;
    Ok(serde_json::json!({}))
}

fn register(mut builder: WorkerBuilder) -> WorkerBuilder {
    for kind in env::var("TEST_KINDS").expect("TEST_KINDS").split(',') {
        // Kinds live as long as the program.
        let kind: &'static str = kind.to_owned().leak();
        builder = builder.handle_kind(kind, wait, TaskOptions::short());
    }
    builder
}

fn main() -> Exit {
    let cli = Cli::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let exit = exit::report("kind-worker", runtime.block_on(cli.run(|builder| Ok(register(builder)))));
    runtime.shutdown_background();
    exit
}
