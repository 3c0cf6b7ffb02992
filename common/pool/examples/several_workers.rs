//! A task that takes several workers: counts primes in shards and joins the counts.
//!
//! Run with `cargo run -p garenne-pool --example several_workers`.

use std::{error::Error, time::Duration};

use garenne_pool::{OnEnd, Pool, PoolConfig, Refusal, Spec, Stop, Task, TaskContext};

/// Counts the primes below a limit.
struct CountPrimes(u64);

impl Task for CountPrimes {
    type Output = usize;

    async fn run(self, cx: TaskContext) -> usize {
        let (shard, width) = (u64::from(cx.shard()), cx.width() as usize);
        println!("shard {shard} of {width} starts");
        (2 + shard..self.0).step_by(width).filter(|n| (2..*n).all(|divisor| n % divisor != 0)).count()
    }

    fn shard(&self) -> Option<Self> {
        Some(Self(self.0))
    }

    fn join(first: usize, next: usize) -> usize {
        first + next
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = PoolConfig {
        name: "primes".to_owned(),
        queue: 10,
        workers: 1..=3,
        idle_timeout: Duration::from_secs(10),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_secs(1),
    };
    let pool = Pool::start(config, tokio::runtime::Handle::current())?;
    let print = || OnEnd(|ending| println!("{ending:?}"));

    // Starts with the workers that are free; the other shards follow as workers become free.
    let spec = Spec::short("primes").width(3).on_threads();
    pool.submit(spec, CountPrimes(5_000), print())?.wait().await;

    // A task cannot ask for more workers than the pool may have.
    let refused = pool.submit(Spec::short("wide").width(4), CountPrimes(5_000), print()).unwrap_err();
    assert_eq!(refused.reason, Refusal::TooManyWorkers { asked: 4, max: 3 });
    println!("refused: {refused}");

    pool.begin_shutdown(Stop::Light);
    println!("{:?}", pool.stopped().await);
    Ok(())
}
