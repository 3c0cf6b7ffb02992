//! Panics, restarts, metrics and snapshots.
//!
//! Run with `cargo run -p garenne-pool --example restarts_and_metrics`.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use garenne_pool::{
    Backoff, Completion, Ending, EndingKind, Observer, Placement, Pool, PoolConfig, PoolOptions, Spec, Stop,
    Task, TaskContext, TaskId,
};

/// Every fifth one panics.
struct Flaky(u64);

impl Task for Flaky {
    type Output = u64;

    async fn run(self, _cx: TaskContext) -> u64 {
        assert!(!self.0.is_multiple_of(5), "{} is divisible by 5", self.0);
        self.0
    }

    fn label(&self) -> Option<&'static str> {
        Some("flaky")
    }
}

/// Undoes what a failed task may have done in part.
struct Rollback;

impl Completion<u64> for Rollback {
    fn complete(self, ending: Ending<u64>) {
        if let Ending::Panicked { message } = ending {
            println!("failed: {message}");
        }
    }

    fn compensate(&mut self, id: &TaskId, _ending: &Ending<u64>) {
        println!("rolling back {id}");
    }
}

/// Stands in for a metrics registry.
#[derive(Default)]
struct Metrics {
    started: AtomicU64,
    panicked: AtomicU64,
    busy_nanoseconds: AtomicU64,
}

impl Observer for Metrics {
    fn started(&self, _waited: Duration, _placement: Placement) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self, ran: Duration, ending: EndingKind) {
        self.busy_nanoseconds.fetch_add(ran.subsec_nanos().into(), Ordering::Relaxed);
        if ending == EndingKind::Panicked {
            self.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = PoolConfig {
        name: "flaky".to_owned(),
        queue: 100,
        workers: 2..=2,
        idle_timeout: Duration::from_secs(10),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_secs(1),
    };
    let metrics = Arc::new(Metrics::default());
    let options = PoolOptions {
        observer: Some(Arc::clone(&metrics) as Arc<dyn Observer>),
        // The pause after a panic doubles with each further one, so that a task that always panics cannot use up a
        // processor.
        restart: Backoff { base: Duration::from_millis(1), cap: Duration::from_millis(50) },
    };
    let pool = Pool::start_with(config, tokio::runtime::Handle::current(), options)?;
    let tasks = (1..=20).map(|number| (Spec::short(TaskId::number(number)), Flaky(number), Rollback));
    pool.submit_together(tasks.collect())?.all().await;

    let snapshot = pool.snapshot();
    println!("{} restarts; {:?}", snapshot.workers.restarts, snapshot.totals);
    println!(
        "{} started, {} panicked, busy for {} ns",
        metrics.started.load(Ordering::Relaxed),
        metrics.panicked.load(Ordering::Relaxed),
        metrics.busy_nanoseconds.load(Ordering::Relaxed),
    );
    assert_eq!(metrics.panicked.load(Ordering::Relaxed), 4);

    pool.begin_shutdown(Stop::Soft);
    println!("{:?}", pool.stopped().await);
    Ok(())
}
