//! How long a task of one group waits while another group uses its whole cap.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use garenne_bench::Rows;
use garenne_pool::{Pool, PoolConfig, Spec, Task, TaskContext, TaskId};
use tokio::runtime::Runtime;

enum Job {
    /// Waits, as for a slow service.
    Slow,
    /// Records how long it waited.
    Quick(Instant, Arc<Mutex<Vec<Duration>>>),
}

impl Task for Job {
    type Output = ();

    async fn run(self, _cx: TaskContext) {
        match self {
            Self::Slow => tokio::time::sleep(Duration::from_millis(20)).await,
            Self::Quick(submitted, waits) => {
                waits.lock().unwrap_or_else(PoisonError::into_inner).push(submitted.elapsed());
            }
        }
    }
}

const QUICK: u64 = 5_000;
const SLOW: u64 = 500;

/// The 99th percentile of the quick group's waits, in nanoseconds.
fn p99(runtime: &Runtime, beside_slow: bool) -> f64 {
    let config = PoolConfig {
        name: "fair".to_owned(),
        queue: 1024,
        workers: 4..=4,
        idle_timeout: Duration::from_secs(60),
        default_deadline: Duration::from_secs(60),
        grace: Duration::from_secs(2),
    };
    let _control = runtime.enter();
    let pool: Pool<Job, ()> = Pool::start(config, runtime.handle().clone()).expect("the sizes agree");
    let waits = Arc::new(Mutex::new(Vec::with_capacity(QUICK as usize)));
    pool.group("slow").cap(Some(2));
    if beside_slow {
        for number in 0..SLOW {
            let spec = Spec::short(TaskId::number(number)).group("slow");
            pool.submit_detached(spec, Job::Slow, ()).expect("the queue is large enough");
        }
    }
    let submitter = pool.clone();
    let noted = Arc::clone(&waits);
    let run = runtime.spawn(async move {
        for number in 0..QUICK {
            let job = Job::Quick(Instant::now(), Arc::clone(&noted));
            let spec = Spec::short(TaskId::number(number)).group("quick");
            submitter.submit(spec, job, ()).expect("there is room").wait().await;
        }
    });
    runtime.block_on(run).expect("nothing panics here");
    pool.group("slow").stop();
    let mut waits = std::mem::take(&mut *waits.lock().unwrap_or_else(PoisonError::into_inner));
    waits.sort_unstable();
    waits[waits.len() * 99 / 100].as_secs_f64() * 1e9
}

pub(crate) fn run(runtime: &Runtime, rounds: usize, rows: &mut Rows) {
    for _ in 0..rounds {
        let (alone, beside) = (p99(runtime, false), p99(runtime, true));
        rows.add("pool/fair/p99-wait/alone", "ns", alone);
        rows.add("pool/fair/p99-wait/beside-slow", "ns", beside);
        rows.add("pool/fair/p99-wait/ratio", "times", beside / alone);
    }
}
