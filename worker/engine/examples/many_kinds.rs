//! A worker whose kinds are known only when it runs: `MANY_KINDS=N` of them, `many.0` to `many.<N-1>`,
//! which do nothing. The benchmark of what a number of kinds costs runs it.

use garenne::{Exit, TaskContext, TaskError, TaskOptions, cli, json_payload};

#[derive(serde::Deserialize)]
struct Nothing {}
json_payload!(Nothing, "many");

async fn nothing(_: TaskContext, _: Nothing) -> Result<serde_json::Value, TaskError> {
    Ok(serde_json::json!({}))
}

fn main() -> Exit {
    let kinds: u32 = std::env::var("MANY_KINDS").ok().and_then(|kinds| kinds.parse().ok()).unwrap_or(1);
    cli::run("many-kinds", |worker| {
        // A kind lives as long as the program.
        let names = (0..kinds).map(|kind| &*format!("many.{kind}").leak());
        Ok(names.fold(worker, |worker, kind| worker.handle_kind(kind, nothing, TaskOptions::short())))
    })
}
