//! Kinds for trying a fleet out: what they do to their worker is in their names. Registered only
//! with `--enable-bench`.

use std::{hint::black_box, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    handler::{TaskContext, TaskError, TaskOptions},
    json_payload,
    worker::WorkerBuilder,
};

/// The longest a bench task may be asked to take: ten minutes.
const LONGEST_MS: u64 = 600_000;

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

/// `bench.panic`.
#[derive(Deserialize)]
struct Panic {}
json_payload!(Panic, "bench.panic");

/// `bench.abort`.
#[derive(Deserialize)]
struct Abort {}
json_payload!(Abort, "bench.abort");

/// Adds them all.
pub fn register(builder: WorkerBuilder) -> WorkerBuilder {
    let long = || TaskOptions::long().deadline(Duration::from_millis(LONGEST_MS));
    builder
        .handle(noop)
        .handle(factorial)
        .handle_with(sleep, long())
        .handle_with(deaf, long())
        .handle_with(spin, long().cpu_bound())
        .handle(fail)
        .handle(panic)
        .handle(abort)
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

async fn panic(_: TaskContext, _: Panic) -> Result<Value, TaskError> {
    panic!("bench.panic was asked for")
}

async fn abort(_: TaskContext, _: Abort) -> Result<Value, TaskError> {
    std::process::abort()
}
