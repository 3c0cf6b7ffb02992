//! A bounded queue: typed refusals, waiting for room, and the four ways to shut down.
//!
//! Run with `cargo run -p garenne-pool --example backpressure`.

use std::{error::Error, sync::Arc, time::Duration};

use garenne_pool::{Ending, OnEnd, Pool, PoolConfig, Refusal, Spec, Stop, Task, TaskContext, TaskId};
use tokio::sync::Notify;

struct Job;

impl Task for Job {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            _cause = cx.cancelled() => {}
        }
    }
}

fn config() -> PoolConfig {
    PoolConfig {
        name: "jobs".to_owned(),
        queue: 4,
        workers: 1..=2,
        idle_timeout: Duration::from_secs(10),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_secs(1),
    }
}

/// Wakes the submitter when a task ends.
fn wake(room: &Arc<Notify>) -> OnEnd<impl FnOnce(Ending<()>) + Send + 'static + use<>> {
    let room = Arc::clone(room);
    OnEnd(move |_| room.notify_one())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let grace = Duration::from_millis(500);
    let modes = [
        Stop::Light,
        Stop::Soft,
        Stop::SoftTimeout { timeout: Duration::from_millis(5), grace },
        Stop::Hard { grace },
    ];
    for mode in modes {
        let pool = Pool::start(config(), tokio::runtime::Handle::current())?;
        let room = Arc::new(Notify::new());
        let mut refusals = 0;
        for number in 0..10 {
            let mut job = (Job, wake(&room));
            // A refusal returns the task and its completion. The queue counts queued and running tasks, so there is
            // room again as soon as any task ends.
            while let Err(refused) = pool.submit_detached(Spec::long(TaskId::number(number)), job.0, job.1) {
                assert_eq!(refused.reason, Refusal::QueueFull { limit: 4 });
                refusals += 1;
                job = refused.task;
                room.notified().await;
            }
        }
        pool.begin_shutdown(mode);
        let refused = pool.submit(Spec::short("late"), Job, wake(&room)).unwrap_err();
        println!("{mode:?}: {refusals} refusals, then {:?}; {:?}", refused.reason, pool.stopped().await);
    }
    Ok(())
}
