//! Kinds for trying a fleet out: what they do to their worker is in their names. Registered only
//! with `--enable-bench`.

use std::{hint::black_box, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use garenne::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

/// The longest a bench task may be asked to take: ten minutes.
const LONGEST_MS: u64 = 600_000;

/// The most memory a bench task may be asked to take: 64 GiB.
const LARGEST_MIB: u64 = 65_536;

/// `bench.noop`: any object.
#[derive(Deserialize)]
struct Noop {}
json_payload!(Noop, "bench.noop");

/// `bench.factorial`.
#[derive(Deserialize)]
struct Factorial {
    n: u32,
}
json_payload!(Factorial, "bench.factorial");

macro_rules! timed {
    ($($name:ident $kind:literal),*) => {
        $(
            #[doc = $kind]
            #[derive(Deserialize)]
            struct $name {
                ms: u64,
            }
            json_payload!($name, $kind);
        )*
    };
}
timed!(Sleep "bench.sleep", Deaf "bench.deaf", Spin "bench.spin");

/// `bench.fail`.
#[derive(Deserialize)]
struct Fail {
    times: u32,
}
json_payload!(Fail, "bench.fail");

/// `bench.follow`.
#[derive(Deserialize, Serialize)]
struct Follow {
    /// The kind to start.
    kind: String,
    /// Its payload; this task's own when absent, so that a kind can be started by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
    /// How many of them; 1 when absent.
    #[serde(default = "one")]
    count: u32,
    /// Attempts that fail after having asked for them all.
    #[serde(default)]
    fail_times: u32,
}
json_payload!(Follow, "bench.follow");

fn one() -> u32 {
    1
}

/// `bench.echo`: any JSON.
#[derive(Deserialize)]
#[serde(transparent)]
struct Echo(Value);
json_payload!(Echo, "bench.echo");

/// `bench.panic`.
#[derive(Deserialize)]
struct Panic {}
json_payload!(Panic, "bench.panic");

/// `bench.abort`.
#[derive(Deserialize)]
struct Abort {
    /// Leaves the process alone: a harmless task among fatal ones of the same kind.
    #[serde(default)]
    spare: bool,
}
json_payload!(Abort, "bench.abort");

/// `bench.overflow`.
#[derive(Deserialize)]
struct Overflow {}
json_payload!(Overflow, "bench.overflow");

/// `bench.hoard`.
#[derive(Deserialize)]
struct Hoard {
    mib: u64,
}
json_payload!(Hoard, "bench.hoard");

/// Adds them all.
pub(crate) fn register(builder: WorkerBuilder) -> WorkerBuilder {
    let long = || TaskOptions::long().deadline(Duration::from_millis(LONGEST_MS));
    builder
        .handle(noop)
        .handle(factorial)
        .handle_with(sleep, long())
        .handle_with(deaf, long())
        .handle_with(spin, long().cpu_bound())
        .handle(fail)
        .handle(follow)
        .handle(echo)
        .handle(panic)
        .handle(abort)
        .handle(overflow)
        .handle(hoard)
}

async fn noop(_: TaskContext, _: Noop) -> Result<Value, TaskError> {
    Ok(json!({}))
}

async fn factorial(_: TaskContext, Factorial { n }: Factorial) -> Result<Value, TaskError> {
    if n > 170 {
        return Err(TaskError::invalid(format!("n is {n}, 0 to 170 is allowed")));
    }
    let factorial: f64 = (1..=n).map(f64::from).product();
    Ok(json!({ "factorial": black_box(factorial) }))
}

fn span(ms: u64) -> Result<Duration, TaskError> {
    if ms > LONGEST_MS {
        return Err(TaskError::invalid(format!("ms is {ms}, 0 to {LONGEST_MS} is allowed")));
    }
    Ok(Duration::from_millis(ms))
}

async fn sleep(cx: TaskContext, Sleep { ms }: Sleep) -> Result<Value, TaskError> {
    let span = span(ms)?;
    tokio::select! {
        () = tokio::time::sleep(span) => Ok(json!({ "slept_ms": ms })),
        () = cx.token().cancelled() => Err(TaskError::interrupted()),
    }
}

async fn deaf(_: TaskContext, Deaf { ms }: Deaf) -> Result<Value, TaskError> {
    tokio::time::sleep(span(ms)?).await;
    Ok(json!({ "slept_ms": ms }))
}

async fn spin(_: TaskContext, Spin { ms }: Spin) -> Result<Value, TaskError> {
    let until = Instant::now() + span(ms)?;
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

async fn panic(_: TaskContext, _: Panic) -> Result<Value, TaskError> {
    panic!("bench.panic was asked for")
}

async fn abort(_: TaskContext, Abort { spare }: Abort) -> Result<Value, TaskError> {
    if spare { Ok(json!({})) } else { std::process::abort() }
}

async fn overflow(_: TaskContext, _: Overflow) -> Result<Value, TaskError> {
    Ok(json!({ "depth": descend(0) }))
}

/// Ends when the stack does.
#[expect(unconditional_recursion, reason = "which is what it is for")]
fn descend(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    1 + descend(frame[0] + 1)
}

async fn hoard(_: TaskContext, Hoard { mib }: Hoard) -> Result<Value, TaskError> {
    if mib > LARGEST_MIB {
        return Err(TaskError::invalid(format!("mib is {mib}, 0 to {LARGEST_MIB} is allowed")));
    }
    // Every byte is touched, so that it is also taken where memory is promised freely.
    let hoard: Vec<_> = (0..mib).map(|_| black_box(vec![1_u8; 1 << 20])).collect();
    Ok(json!({ "mib": hoard.len() }))
}
