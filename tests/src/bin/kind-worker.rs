//! A worker with handlers for only the kinds in `TEST_KINDS`, and with the command line of every worker. Each task
//! takes `ms` milliseconds.

use std::{env, time::Duration};

use garenne::{Exit, TaskContext, TaskError, TaskOptions, WorkerBuilder, cli, json_payload};
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
        // The builder needs a static string, and the kinds are used until the program ends.
        let kind: &'static str = kind.to_owned().leak();
        builder = builder.handle_kind(kind, wait, TaskOptions::short());
    }
    builder
}

fn main() -> Exit {
    cli::run("kind-worker", |builder| Ok(register(builder)))
}
