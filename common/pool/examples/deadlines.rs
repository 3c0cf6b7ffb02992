//! Short and long tasks: deadlines, cancellation, and tasks that ignore it.
//!
//! Run with `cargo run -p garenne-pool --example deadlines`.

use std::{error::Error, time::Duration};

use garenne_pool::{OnEnd, Pool, PoolConfig, Spec, Status, Stop, Task, TaskContext};

enum Work {
    /// Returns at once.
    Add(u64, u64),
    /// Counts until it is cancelled and returns how far it came.
    CountUntilCancelled,
    /// Waits for ever and does not look at its context.
    IgnoreCancellation,
}

impl Task for Work {
    type Output = u64;

    async fn run(self, cx: TaskContext) -> u64 {
        match self {
            Self::Add(a, b) => a + b,
            Self::CountUntilCancelled => {
                let mut count = 0;
                let mut ticks = tokio::time::interval(Duration::from_millis(10));
                loop {
                    tokio::select! {
                        _ = ticks.tick() => count += 1,
                        _cause = cx.cancelled() => return count,
                    }
                }
            }
            Self::IgnoreCancellation => std::future::pending().await,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = PoolConfig {
        name: "deadlines".to_owned(),
        queue: 10,
        workers: 1..=4,
        idle_timeout: Duration::from_secs(10),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_millis(50),
    };
    let pool = Pool::start(config, tokio::runtime::Handle::current())?;
    let print = |id: &'static str| OnEnd(move |ending| println!("{id}: {ending:?}"));

    // A short task has no deadline and costs no timer.
    let short = pool.submit(Spec::short("short"), Work::Add(1, 2), print("short"))?;
    short.wait().await;

    // A long task is cancelled at its deadline. It returns a result, marked with the cause.
    let spec = Spec::long("deadline").deadline(Duration::from_millis(100));
    pool.submit(spec, Work::CountUntilCancelled, print("deadline"))?.wait().await;

    // It can also be stopped by its handle or its id. Stopping twice has no effect.
    let stopped = pool.submit(Spec::long("stopped"), Work::CountUntilCancelled, print("stopped"))?;
    while stopped.status() == Status::Queued {
        tokio::task::yield_now().await;
    }
    assert!(pool.stop(&"stopped".into()));
    assert!(!stopped.stop());
    stopped.wait().await;

    // A task that does not return within the grace period is dropped.
    let spec = Spec::long("ignored").deadline(Duration::from_millis(100));
    let ignored = pool.submit(spec, Work::IgnoreCancellation, print("ignored"))?;
    ignored.wait().await;
    println!("error: {:?}", ignored.error());

    pool.begin_shutdown(Stop::Light);
    println!("{:?}", pool.stopped().await);
    Ok(())
}
