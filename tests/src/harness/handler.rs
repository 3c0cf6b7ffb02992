//! A worker whose handler is a program in another language.

use std::{fs, path::PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::{
    client::with_id,
    test_env::TestEnv,
    worker::{Worker, WorkerPlan},
};

/// The kind of the handler's tasks.
pub const KIND: &str = "odd.task";

/// A file of the repository, as a path that does not depend on the working directory.
pub fn repository_file(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// A worker with one handler, of which these are the settings.
pub fn worker_with(env: &TestEnv, name: &str, settings: &str) -> Result<WorkerPlan> {
    let file = env.folder().join(format!("{name}.toml"));
    fs::write(&file, format!("[handlers.\"{KIND}\"]\n{settings}\n"))?;
    Ok(env.worker(name)?.stdout().option("--config", file))
}

/// A worker with the handler `odd_handler.py`, which does what its tasks say.
pub fn odd_worker(env: &TestEnv, name: &str, settings: &str) -> Result<WorkerPlan> {
    let program = repository_file("tests/clients/odd_handler.py");
    worker_with(env, name, &format!("command = [\"python3\", {program:?}]\n{settings}"))
}

/// Publishes a task.
pub async fn publish(env: &TestEnv, id: &str, body: Value) -> Result<()> {
    env.client().publish("garenne.tasks", KIND, with_id(id), body.to_string().as_bytes()).await
}

/// Publishes a task and waits for its output.
pub async fn output_of(env: &TestEnv, worker: &Worker, id: &str, body: Value) -> Result<Value> {
    publish(env, id, body).await?;
    Ok(worker.until_done_with(id).await?.output)
}
