//! A worker with kinds that are known only at run time: `MANY_KINDS=N` no-op kinds, `many.0` to `many.<N-1>`. With
//! `TWO_LAYERS=1` each has two layers that do nothing. The benchmark `growth` uses it to measure the cost of both.

use std::env;

use garenne::{
    Exit, Output, TaskContext, TaskError, TaskOptions, WorkerBuilder, cli, json_payload,
    layer::{Layer, Next, Task},
};

#[derive(serde::Deserialize)]
struct Nothing {}
json_payload!(Nothing, "many");

async fn nothing(_: TaskContext, _: Nothing) -> Result<serde_json::Value, TaskError> {
    Ok(serde_json::json!({}))
}

struct PassThrough;

impl Layer for PassThrough {
    async fn call(&self, task: Task, next: &impl Next) -> Result<Output, TaskError> {
        next.run(task).await
    }
}

fn with_kinds<L: Layer>(worker: WorkerBuilder<L>) -> WorkerBuilder<L> {
    let kinds: u32 = env::var("MANY_KINDS").ok().and_then(|kinds| kinds.parse().ok()).unwrap_or(1);
    // The builder needs a static string, and kinds are used until the program ends.
    let names = (0..kinds).map(|kind| &*format!("many.{kind}").leak());
    names.fold(worker, |worker, kind| worker.handle_kind(kind, nothing, TaskOptions::short()))
}

fn main() -> Exit {
    if env::var_os("TWO_LAYERS").is_some() {
        return cli::run("many-kinds", |worker| Ok(with_kinds(worker.layer(PassThrough).layer(PassThrough))));
    }
    cli::run("many-kinds", |worker| Ok(with_kinds(worker)))
}
