//! A worker with a handler of its own: everything else is the stock worker's.

use std::time::Duration;

use clap::Parser;
use garenne_common::exit::{self, Exit};
use garenne_worker::{TaskContext, TaskError, TaskOptions, cli::Cli, json_payload};

#[derive(serde::Deserialize)]
struct Resize {
    url: String,
    width: u32,
}
json_payload!(Resize, "image.resize");

async fn resize(cx: TaskContext, task: Resize) -> Result<serde_json::Value, TaskError> {
    if task.width == 0 {
        return Err(TaskError::invalid("width is 0, 1 or more is allowed"));
    }
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
        () = cx.token().cancelled() => return Err(TaskError::interrupted()),
    }
    Ok(serde_json::json!({ "url": task.url, "width": task.width }))
}

#[tokio::main]
async fn main() -> Exit {
    let run = Cli::parse().run(|worker| Ok(worker.handle_with(resize, TaskOptions::long())));
    exit::run_main("my-worker", run).await
}
