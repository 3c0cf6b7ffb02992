//! `bench.*`: kinds for load and failure tests. Registered only with `--enable-bench`.

use std::{hint::black_box, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use garenne::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

/// The longest duration of a bench task, in milliseconds: ten minutes.
const MAX_MS: u64 = 600_000;

/// The most memory that a bench task allocates, in MiB: 64 GiB.
const MAX_MIB: u64 = 65_536;

/// The payload of kinds without arguments: any object.
#[derive(Deserialize)]
struct Empty {}
json_payload!(Empty, "bench.noop");

/// `bench.factorial`: computes n!, n from 0 to 170.
#[derive(Deserialize)]
struct Factorial {
    n: u32,
}
json_payload!(Factorial, "bench.factorial");

/// The payload of kinds that take a given time.
#[derive(Deserialize)]
struct Timed {
    ms: u64,
}
json_payload!(Timed, "bench.sleep");

/// `bench.fail`: fails the first `times` attempts.
#[derive(Deserialize)]
struct Fail {
    times: u32,
}
json_payload!(Fail, "bench.fail");

/// `bench.follow`: starts follow-up tasks.
#[derive(Deserialize, Serialize)]
struct Follow {
    kind: String,
    /// Their payload; that of this task if absent, so that `bench.follow` can start itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
    /// The number of follow-ups; 1 if absent.
    #[serde(default = "one")]
    count: u32,
    /// The number of attempts that fail after adding all follow-ups.
    #[serde(default)]
    fail_times: u32,
}
json_payload!(Follow, "bench.follow");

fn one() -> u32 {
    1
}

/// `bench.echo`: returns the payload, any JSON.
#[derive(Deserialize)]
#[serde(transparent)]
struct Echo(Value);
json_payload!(Echo, "bench.echo");

/// `bench.abort`: aborts the worker's process.
#[derive(Deserialize)]
struct Abort {
    /// Does not abort, so that tests can mix harmless and fatal tasks of one kind.
    #[serde(default)]
    spare: bool,
}
json_payload!(Abort, "bench.abort");

/// `bench.hoard`: allocates and touches memory.
#[derive(Deserialize)]
struct Hoard {
    mib: u64,
}
json_payload!(Hoard, "bench.hoard");

/// Registers all `bench.*` kinds.
pub(crate) fn register(builder: WorkerBuilder) -> WorkerBuilder {
    let long = || TaskOptions::long().deadline(Duration::from_millis(MAX_MS));
    builder
        .handle(noop)
        .handle(factorial)
        .handle_with(sleep, long())
        .handle_kind("bench.deaf", deaf, long())
        .handle_kind("bench.spin", spin, long().cpu_bound())
        .handle(fail)
        .handle(follow)
        .handle(echo)
        .handle_kind("bench.panic", panic, TaskOptions::short())
        .handle(abort)
        .handle_kind("bench.overflow", overflow, TaskOptions::short())
        .handle(hoard)
}

/// `bench.noop`: does nothing.
async fn noop(_: TaskContext, _: Empty) -> Result<Value, TaskError> {
    Ok(json!({}))
}

async fn factorial(_: TaskContext, Factorial { n }: Factorial) -> Result<Value, TaskError> {
    check("n", n.into(), 170)?;
    let factorial: f64 = (1..=n).map(f64::from).product();
    Ok(json!({ "factorial": black_box(factorial) }))
}

fn duration(ms: u64) -> Result<Duration, TaskError> {
    check("ms", ms, MAX_MS).map(|()| Duration::from_millis(ms))
}

/// Refuses an argument above its limit.
fn check(name: &str, value: u64, limit: u64) -> Result<(), TaskError> {
    if value <= limit {
        return Ok(());
    }
    Err(TaskError::invalid(format!("{name} is {value}; expected 0 to {limit}")))
}

/// `bench.sleep`: sleeps, and stops when it is cancelled.
async fn sleep(cx: TaskContext, Timed { ms }: Timed) -> Result<Value, TaskError> {
    let duration = duration(ms)?;
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(json!({ "slept_ms": ms })),
        () = cx.token().cancelled() => Err(TaskError::interrupted()),
    }
}

/// `bench.deaf`: sleeps, and ignores cancellation.
async fn deaf(_: TaskContext, Timed { ms }: Timed) -> Result<Value, TaskError> {
    tokio::time::sleep(duration(ms)?).await;
    Ok(json!({ "slept_ms": ms }))
}

/// `bench.spin`: occupies a core.
async fn spin(_: TaskContext, Timed { ms }: Timed) -> Result<Value, TaskError> {
    let until = Instant::now() + duration(ms)?;
    let mut rounds = 0_u64;
    while Instant::now() < until {
        (0..1000).for_each(|i| rounds = black_box(rounds + i % 2));
    }
    Ok(json!({ "rounds": rounds }))
}

async fn fail(cx: TaskContext, Fail { times }: Fail) -> Result<Value, TaskError> {
    if cx.attempt() <= times {
        return Err(TaskError::retry(format!(
            "asked to fail {times} times, this is attempt {}",
            cx.attempt()
        )));
    }
    Ok(json!({ "attempt": cx.attempt() }))
}

async fn follow(cx: TaskContext, task: Follow) -> Result<Value, TaskError> {
    let payload = match &task.payload {
        Some(payload) => payload.clone(),
        None => json!(task),
    };
    let started = (0..task.count).map(|_| cx.follow_up(&task.kind, &payload));
    let started = started.collect::<Result<Vec<_>, _>>()?;
    if cx.attempt() <= task.fail_times {
        return Err(TaskError::retry(format!("asked to fail {} times", task.fail_times)));
    }
    Ok(json!({ "started": started, "depth": cx.depth() }))
}

async fn echo(_: TaskContext, Echo(payload): Echo) -> Result<Value, TaskError> {
    Ok(payload)
}

/// `bench.panic`: panics.
async fn panic(_: TaskContext, _: Empty) -> Result<Value, TaskError> {
    panic!("bench.panic was asked for")
}

async fn abort(_: TaskContext, Abort { spare }: Abort) -> Result<Value, TaskError> {
    if spare { Ok(json!({})) } else { std::process::abort() }
}

/// `bench.overflow`: overflows the stack.
async fn overflow(_: TaskContext, _: Empty) -> Result<Value, TaskError> {
    Ok(json!({ "depth": descend(0) }))
}

#[expect(unconditional_recursion, reason = "overflows the stack on purpose")]
fn descend(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    1 + descend(frame[0] + 1)
}

async fn hoard(_: TaskContext, Hoard { mib }: Hoard) -> Result<Value, TaskError> {
    check("mib", mib, MAX_MIB)?;
    // Writing all bytes forces allocation on systems that overcommit memory.
    let blocks: Vec<_> = (0..mib).map(|_| black_box(vec![1_u8; 1 << 20])).collect();
    Ok(json!({ "mib": blocks.len() }))
}
