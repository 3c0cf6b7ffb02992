//! A worker with the tasks of a Celery application as its handlers, and with the command line of every worker.
//!
//! `proj.tasks.add` adds its two arguments, `proj.tasks.wait` takes `ms` milliseconds and appends its id to the file
//! `CELERY_EFFECTS`, `proj.tasks.flaky` fails until its `succeed_at`th attempt, and `proj.tasks.fail` fails always.

use std::{env, fs::OpenOptions, io::Write, time::Duration};

use garenne::{
    Exit, RetryPolicy, TaskContext, TaskError, TaskOptions, WorkerBuilder, cli,
    payload::{ContentType, Payload, PayloadError},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// A call, as every handler of a lane with the setting `celery` gets it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    args: Vec<Value>,
    kwargs: Map<String, Value>,
}

impl Payload for Call {
    const KIND: &'static str = "proj.tasks.add";

    fn read(_: ContentType, body: &[u8]) -> Result<Self, PayloadError> {
        PayloadError::json(body)
    }
}

impl Call {
    /// The argument with this position and name.
    fn get<T: DeserializeOwned>(&self, at: usize, name: &str) -> Result<T, TaskError> {
        let value = self.args.get(at).or_else(|| self.kwargs.get(name)).cloned();
        let value = value.ok_or_else(|| TaskError::reject(format!("missing argument {name}")))?;
        serde_json::from_value(value).map_err(|error| TaskError::reject(error.to_string()))
    }
}

async fn add(context: TaskContext, call: Call) -> Result<Value, TaskError> {
    if !context.is_celery() {
        return Err(TaskError::reject("not a call"));
    }
    let (x, y): (i64, i64) = (call.get(0, "x")?, call.get(1, "y")?);
    Ok(json!(x + y))
}

async fn wait(context: TaskContext, call: Call) -> Result<Value, TaskError> {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(call.get(0, "ms")?)) => {}
        () = context.token().cancelled() => return Err(TaskError::interrupted()),
    }
    if let Ok(effects) = env::var("CELERY_EFFECTS") {
        let line = format!("{}\n", context.id());
        let file = OpenOptions::new().create(true).append(true).open(effects);
        // One write: a kill leaves the whole line or none.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|error| TaskError::retry(error.to_string()))?;
    }
    Ok(Value::Null)
}

async fn flaky(context: TaskContext, call: Call) -> Result<Value, TaskError> {
    let (attempt, succeed_at) = (context.attempt(), call.get::<u32>(0, "succeed_at")?);
    if attempt < succeed_at {
        return Err(TaskError::retry(format!("attempt {attempt} fails")));
    }
    Ok(json!({"attempt": attempt, "celery": context.is_celery(), "tenant": context.header_text("tenant")}))
}

async fn fail(_: TaskContext, call: Call) -> Result<Value, TaskError> {
    Err(TaskError::reject(call.get::<String>(0, "message")?))
}

fn register(builder: WorkerBuilder) -> WorkerBuilder {
    let soon = RetryPolicy::default();
    builder
        .handle_kind("proj.tasks.add", add, TaskOptions::short())
        .handle_kind("proj.tasks.wait", wait, TaskOptions::long())
        .handle_kind("proj.tasks.flaky", flaky, TaskOptions::short().retry(soon))
        .handle_kind("proj.tasks.fail", fail, TaskOptions::short())
}

fn main() -> Exit {
    cli::run("celery-worker", |builder| Ok(register(builder)))
}
