//! Groups: cap, pause, resume, stop and await the tasks of one customer without delaying the others.
//!
//! Run with `cargo run -p garenne-pool --example groups`.

use std::{error::Error, time::Duration};

use garenne_pool::{Pool, PoolConfig, Spec, Stop, Task, TaskContext};

struct Request(&'static str);

impl Task for Request {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        println!("{} {} starts", self.0, cx.id());
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
            cause = cx.cancelled() => println!("{} {} is cancelled: {cause:?}", self.0, cx.id()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = PoolConfig {
        name: "groups".to_owned(),
        queue: 100,
        workers: 2..=8,
        idle_timeout: Duration::from_secs(10),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_secs(1),
    };
    let pool: Pool<Request, ()> = Pool::start(config, tokio::runtime::Handle::current())?;

    // At most two requests of this customer run at once, however many wait.
    pool.group("large").cap(Some(2));
    for number in 0..6 {
        pool.submit(Spec::long(number.to_string()).group("large"), Request("large"), ())?;
    }
    // Other groups do not wait for them.
    pool.submit(Spec::long("a").group("small"), Request("small"), ())?;
    pool.group("small").wait().await;
    println!("small is done, large: {:?}", pool.snapshot().groups);

    // A paused group keeps its queued tasks and starts none of them.
    pool.group("large").pause();
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("large is paused: {:?}", pool.snapshot().groups);
    pool.group("large").resume();

    // Stopping ends queued tasks and cancels running ones.
    println!("stopped {} tasks", pool.group("large").stop());
    pool.group("large").wait().await;

    // A batch is admitted as a whole or not at all, and is awaited together.
    let tasks = ["x", "y", "z"].map(|id| (Spec::long(id), Request("batch"), ())).into();
    let batch = pool.submit_together(tasks)?;
    println!("batch: {:?}", batch.first_error().await);

    pool.begin_shutdown(Stop::Light);
    println!("{:?}", pool.stopped().await);
    Ok(())
}
