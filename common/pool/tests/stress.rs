//! Many threads use one pool at once, in real time. Every admitted task ends once, and its place in the queue is
//! free again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use garenne_pool::{
    Backoff, Completion, Ending, Phase, Pool, PoolConfig, PoolOptions, Refusal, Run, Spec, Stop, Task,
    TaskContext, TaskId,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::runtime;

const QUEUE: usize = 64;
const WORKERS: usize = 8;
const SUBMITTERS: usize = 4;
const TASKS: usize = 20_000;
const GROUPS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy)]
enum Behavior {
    Return,
    Yield,
    Nap,
    Spin,
    Panic,
    AwaitCancel,
    IgnoreCancel,
}

struct TestTask(Behavior);

impl Task for TestTask {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        match self.0 {
            Behavior::Return => {}
            Behavior::Yield => tokio::task::yield_now().await,
            Behavior::Nap => tokio::time::sleep(Duration::from_micros(300)).await,
            Behavior::Spin => {
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_micros(100) {
                    std::hint::spin_loop();
                }
            }
            Behavior::Panic => std::panic::resume_unwind(Box::new("test panic")),
            Behavior::AwaitCancel => drop(cx.cancelled().await),
            Behavior::IgnoreCancel => std::future::pending().await,
        }
    }

    fn shard(&self) -> Option<Self> {
        Some(Self(self.0))
    }
}

#[derive(Default)]
struct Ledger {
    /// How often each task ended, by its number.
    ended: Vec<AtomicU8>,
    open: AtomicI64,
    not_finished: AtomicU64,
}

struct Tell(usize, Arc<Ledger>);

impl Completion<()> for Tell {
    fn complete(self, ending: Ending<()>) {
        self.1.open.fetch_sub(1, Ordering::SeqCst);
        self.1.ended[self.0].fetch_add(1, Ordering::SeqCst);
        if !matches!(ending, Ending::Finished { cancelled_by: None, .. }) {
            self.1.not_finished.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn random_spec(number: usize, random: &mut SmallRng) -> (Spec, Behavior) {
    let behavior = match random.random_range(0..100) {
        0..60 => Behavior::Return,
        60..70 => Behavior::Yield,
        70..80 => Behavior::Nap,
        80..88 => Behavior::Spin,
        88..94 => Behavior::Panic,
        94..98 => Behavior::AwaitCancel,
        _ => Behavior::IgnoreCancel,
    };
    let mut spec = Spec::short(TaskId::number(number as u64));
    if matches!(behavior, Behavior::AwaitCancel | Behavior::IgnoreCancel) || random.random_ratio(1, 4) {
        spec.run = Run::Long { deadline: Some(Duration::from_millis(2)) };
    }
    match random.random_range(0..20) {
        0..3 => spec = spec.group(GROUPS[random.random_range(0..GROUPS.len())]),
        3 => spec = spec.width(random.random_range(2..4)),
        5 => spec = spec.helped_by(random.random_range(1..4)),
        4 => spec = spec.on_threads(),
        _ => {}
    }
    (spec, behavior)
}

/// Submits random tasks. Returns how many were refused because the pool was closed.
async fn submit(pool: Pool<TestTask, Tell>, ledger: Arc<Ledger>, from: usize, seed: u64) -> usize {
    let mut random = SmallRng::seed_from_u64(seed);
    for number in from..from + TASKS / SUBMITTERS {
        let (spec, behavior) = random_spec(number, &mut random);
        let (mut job, mut tell) = (TestTask(behavior), Tell(number, Arc::clone(&ledger)));
        ledger.open.fetch_add(1, Ordering::SeqCst);
        while let Err(again) = pool.submit_detached(spec.clone(), job, tell) {
            if again.reason == Refusal::PoolClosed {
                ledger.open.fetch_sub(1, Ordering::SeqCst);
                return from + TASKS / SUBMITTERS - number;
            }
            assert_eq!(again.reason, Refusal::QueueFull { limit: QUEUE });
            // The submitters that retry count as open, and a worker frees the place before it calls the completion.
            let open = ledger.open.load(Ordering::SeqCst);
            assert!(open <= (QUEUE + 2 * SUBMITTERS + WORKERS) as i64, "{open} open in a queue of {QUEUE}");
            (job, tell) = again.task;
            tokio::task::yield_now().await;
        }
        if random.random_ratio(1, 50) {
            send_random_order(&pool, number, &mut random);
        }
    }
    0
}

fn send_random_order(pool: &Pool<TestTask, Tell>, number: usize, random: &mut SmallRng) {
    let group = pool.group(GROUPS[random.random_range(0..GROUPS.len())]);
    match random.random_range(0..7) {
        0 => drop(pool.stop(&TaskId::number(number.saturating_sub(random.random_range(0..30)) as u64))),
        1 => group.pause(),
        2 => group.cap(Some(random.random_range(1..3))),
        3 => drop(group.stop()),
        4 => drop(pool.stop_worker(random.random_range(0..20), random.random())),
        5 => drop(serde_json::to_string(&pool.snapshot()).unwrap()),
        _ => {}
    }
    // A paused group would keep its places in the queue, and the submitters would wait for ever.
    for group in GROUPS {
        pool.group(group).resume();
    }
}

async fn run_storm(stop: Stop, stop_early: bool, seed: u64) {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let config = PoolConfig {
        name: "run_storm".to_owned(),
        queue: QUEUE,
        workers: 2..=WORKERS,
        idle_timeout: Duration::from_millis(2),
        default_deadline: Duration::from_millis(2),
        grace: Duration::from_millis(2),
    };
    let restart = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    let options = PoolOptions { restart, ..PoolOptions::default() };
    let pool = Pool::start_with(config, tasks.handle().clone(), options).unwrap();
    let ended = (0..TASKS).map(|_| AtomicU8::new(0)).collect();
    let ledger = Arc::new(Ledger { ended, ..Ledger::default() });
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|nth| {
            let from = nth * TASKS / SUBMITTERS;
            tokio::spawn(submit(pool.clone(), Arc::clone(&ledger), from, seed + nth as u64))
        })
        .collect();
    if stop_early {
        while pool.snapshot().totals.admitted < TASKS as u64 / 4 {
            tokio::task::yield_now().await;
        }
        pool.begin_shutdown(stop);
    }
    let mut refused = 0;
    for submitter in submitters {
        refused += submitter.await.unwrap();
    }
    pool.begin_shutdown(stop);
    let report = pool.stopped().await;
    let snapshot = pool.snapshot();
    assert_eq!((snapshot.phase, snapshot.queued, snapshot.running), (Phase::Closed, 0, 0));
    assert_eq!(ledger.open.load(Ordering::SeqCst), 0, "{report:?}");
    let counts: Vec<u8> = ledger.ended.iter().map(|ended| ended.load(Ordering::SeqCst)).collect();
    assert!(counts.iter().all(|count| *count <= 1), "a task ended more than once");
    let once = counts.iter().filter(|count| **count == 1).count();
    assert_eq!((once, once as u64), (TASKS - refused, snapshot.totals.admitted));
    let totals = snapshot.totals;
    let not_finished = totals.not_started + totals.interrupted + totals.abandoned + totals.panicked;
    assert_eq!(not_finished, ledger.not_finished.load(Ordering::SeqCst));
    assert_eq!(totals.finished + not_finished, totals.admitted);
    tasks.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_admitted_task_ends_once_and_frees_its_place_in_the_queue() {
    run_storm(Stop::Light, false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_admitted_task_ends_once_if_the_pool_is_stopped_in_between() {
    let soft = Stop::SoftTimeout { timeout: Duration::from_millis(5), grace: Duration::from_millis(5) };
    for (nth, stop) in
        [Stop::Soft, soft, Stop::Hard { grace: Duration::from_millis(5) }].into_iter().enumerate()
    {
        run_storm(stop, true, 100 * nth as u64).await;
    }
}
