//! A worker with kinds that are known only at run time: `MANY_KINDS=N` no-op kinds, `many.0` to `many.<N-1>`. The
//! benchmark `growth` uses it to measure the cost of many kinds.

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
        // The builder needs a static string, and kinds are used until the program ends.
        let names = (0..kinds).map(|kind| &*format!("many.{kind}").leak());
        Ok(names.fold(worker, |worker, kind| worker.handle_kind(kind, nothing, TaskOptions::short())))
    })
}
