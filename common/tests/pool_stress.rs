//! Many threads at once, in real time: whatever they do to each other, every task that was admitted
//! ends once, and its place is free again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use garenne_common::pool::{
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
enum Act {
    Return,
    Yield,
    Nap,
    Spin,
    Panic,
    Obey,
    Deaf,
}

struct Job(Act);

impl Task for Job {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        match self.0 {
            Act::Return => {}
            Act::Yield => tokio::task::yield_now().await,
            Act::Nap => tokio::time::sleep(Duration::from_micros(300)).await,
            Act::Spin => {
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_micros(100) {
                    std::hint::spin_loop();
                }
            }
            Act::Panic => std::panic::resume_unwind(Box::new("as asked")),
            Act::Obey => drop(cx.cancelled().await),
            Act::Deaf => std::future::pending().await,
        }
    }

    fn shard(&self) -> Option<Self> {
        Some(Self(self.0))
    }
}

#[derive(Default)]
struct Account {
    /// How often each task ended.
    ended: Vec<AtomicU8>,
    open: AtomicI64,
    not_finished: AtomicU64,
}

struct Tell(usize, Arc<Account>);

impl Completion<()> for Tell {
    fn complete(self, ending: Ending<()>) {
        self.1.open.fetch_sub(1, Ordering::SeqCst);
        self.1.ended[self.0].fetch_add(1, Ordering::SeqCst);
        if !matches!(ending, Ending::Finished { told: None, .. }) {
            self.1.not_finished.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn random_spec(number: usize, random: &mut SmallRng) -> (Spec, Act) {
    let act = match random.random_range(0..100) {
        0..60 => Act::Return,
        60..70 => Act::Yield,
        70..80 => Act::Nap,
        80..88 => Act::Spin,
        88..94 => Act::Panic,
        94..98 => Act::Obey,
        _ => Act::Deaf,
    };
    let mut spec = Spec::short(TaskId::number(number as u64));
    if matches!(act, Act::Obey | Act::Deaf) || random.random_ratio(1, 4) {
        spec.run = Run::Long { deadline: Some(Duration::from_millis(2)) };
    }
    match random.random_range(0..20) {
        0..3 => spec = spec.group(GROUPS[random.random_range(0..GROUPS.len())]),
        3 => spec = spec.width(random.random_range(2..4)),
        4 => spec = spec.on_threads(),
        _ => {}
    }
    (spec, act)
}

/// Answers how many were refused because the pool had closed.
async fn submit(pool: Pool<Job, Tell>, account: Arc<Account>, from: usize, seed: u64) -> usize {
    let mut random = SmallRng::seed_from_u64(seed);
    for number in from..from + TASKS / SUBMITTERS {
        let (spec, act) = random_spec(number, &mut random);
        let (mut job, mut tell) = (Job(act), Tell(number, Arc::clone(&account)));
        account.open.fetch_add(1, Ordering::SeqCst);
        while let Err(again) = pool.submit_detached(spec.clone(), job, tell) {
            if again.reason == Refusal::PoolClosed {
                account.open.fetch_sub(1, Ordering::SeqCst);
                return from + TASKS / SUBMITTERS - number;
            }
            assert_eq!(again.reason, Refusal::QueueFull { limit: QUEUE });
            // Those who try count as open, too, and whoever is just telling an end has made room.
            let open = account.open.load(Ordering::SeqCst);
            assert!(open <= (QUEUE + 2 * SUBMITTERS + WORKERS) as i64, "{open} open in a queue of {QUEUE}");
            (job, tell) = again.task;
            tokio::task::yield_now().await;
        }
        if random.random_ratio(1, 50) {
            disturb(&pool, number, &mut random);
        }
    }
    0
}

fn disturb(pool: &Pool<Job, Tell>, number: usize, random: &mut SmallRng) {
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
    // Never left paused for long: submitters would wait for room for ever.
    for group in GROUPS {
        pool.group(group).resume();
    }
}

async fn storm(stop: Stop, stop_early: bool, seed: u64) {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let config = PoolConfig {
        name: "storm".to_owned(),
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
    let account = Arc::new(Account { ended, ..Account::default() });
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|nth| {
            let from = nth * TASKS / SUBMITTERS;
            tokio::spawn(submit(pool.clone(), Arc::clone(&account), from, seed + nth as u64))
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
    assert_eq!(account.open.load(Ordering::SeqCst), 0, "{report:?}");
    let counts: Vec<u8> = account.ended.iter().map(|ended| ended.load(Ordering::SeqCst)).collect();
    assert!(counts.iter().all(|count| *count <= 1), "a task ended more than once");
    let once = counts.iter().filter(|count| **count == 1).count();
    assert_eq!((once, once as u64), (TASKS - refused, snapshot.totals.admitted));
    let totals = snapshot.totals;
    let not_finished = totals.not_started + totals.interrupted + totals.abandoned + totals.panicked;
    assert_eq!(not_finished, account.not_finished.load(Ordering::SeqCst));
    assert_eq!(totals.finished + not_finished, totals.admitted);
    tasks.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_admitted_task_ends_once_and_frees_its_place() {
    storm(Stop::Light, false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_when_the_pool_is_stopped_in_the_middle() {
    let soft = Stop::SoftTimeout { timeout: Duration::from_millis(5), grace: Duration::from_millis(5) };
    for (nth, stop) in
        [Stop::Soft, soft, Stop::Hard { grace: Duration::from_millis(5) }].into_iter().enumerate()
    {
        storm(stop, true, 100 * nth as u64).await;
    }
}
