//! Sends random orders to a pool and to a simple model of it. After each order, and whenever something was due in
//! between, both must assert_agreement on the queued tasks, the running tasks, and how the others ended.

mod model;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_pool::{
    Backoff, Completion, Ending, Phase, Pool, PoolConfig, PoolOptions, Refusal, Run, Spec, Stop, Task,
    TaskContext, TaskId,
};
use proptest::prelude::*;
use tokio::sync::oneshot;

use model::{GRACE, HARD_GRACE, Key, Kind, Model, QUEUE, TICK, TIMEOUT, WORKERS};

const GROUPS: [&str; 2] = ["red", "blue"];

#[derive(Debug, Clone)]
enum Order {
    Submit(Kind, Option<usize>, u32),
    Release(usize),
    Stop(usize),
    Pause(usize),
    Resume(usize),
    Cap(usize, Option<usize>),
    StopGroup(usize),
    Wait(u32),
    Shutdown(u8),
}

fn order() -> impl Strategy<Value = Order> {
    let kind = prop_oneof![
        Just(Kind::Quick),
        Just(Kind::Panics),
        Just(Kind::Holds),
        Just(Kind::AwaitsCancel),
        Just(Kind::IgnoreCancel),
        Just(Kind::ShardsPanic)
    ];
    // A width above the number of workers is refused.
    let width = prop_oneof![3 => Just(1), 2 => 1..=WORKERS as u32 + 1];
    let group = 0..GROUPS.len();
    prop_oneof![
        12 => (kind, proptest::option::of(group.clone()), width)
            .prop_map(|(kind, group, width)| {
                // If a shard is given up, the next one is either ended or started by the worker that becomes free
                // at the same moment. The model does not decide which.
                let width = if kind == Kind::IgnoreCancel { 1 } else { width };
                Order::Submit(kind, group, width)
            }),
        4 => (0..QUEUE).prop_map(Order::Release),
        2 => (0..40_usize).prop_map(Order::Stop),
        1 => group.clone().prop_map(Order::Pause),
        2 => group.clone().prop_map(Order::Resume),
        1 => (group.clone(), proptest::option::of(0..3_usize)).prop_map(|(group, cap)| Order::Cap(group, cap)),
        1 => group.prop_map(Order::StopGroup),
        2 => (1..8_u32).prop_map(Order::Wait),
        1 => (0..4_u8).prop_map(Order::Shutdown),
    ]
}

/// Reports of the tasks and completions.
#[derive(Default)]
struct Log {
    endings: BTreeMap<usize, Vec<Ending<()>>>,
    starts: Vec<usize>,
    go: BTreeMap<Key, oneshot::Sender<()>>,
}

struct TestTask {
    number: usize,
    kind: Kind,
    log: Arc<Mutex<Log>>,
}

impl Task for TestTask {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        self.log.lock().unwrap().starts.push(self.number);
        match self.kind {
            Kind::Quick => {}
            // `resume_unwind` skips the panic hook, which would print a backtrace.
            Kind::Panics => std::panic::resume_unwind(Box::new("test panic")),
            Kind::ShardsPanic if cx.shard() > 0 => std::panic::resume_unwind(Box::new("test panic")),
            Kind::Holds => {
                let (go, hold) = oneshot::channel();
                self.log.lock().unwrap().go.insert((self.number, cx.shard()), go);
                hold.await.unwrap();
            }
            Kind::AwaitsCancel | Kind::ShardsPanic => drop(cx.cancelled().await),
            Kind::IgnoreCancel => std::future::pending().await,
        }
    }

    fn shard(&self) -> Option<Self> {
        Some(Self { number: self.number, kind: self.kind, log: Arc::clone(&self.log) })
    }
}

struct Record(usize, Arc<Mutex<Log>>);

impl Completion<()> for Record {
    fn complete(self, ending: Ending<()>) {
        self.1.lock().unwrap().endings.entry(self.0).or_default().push(ending);
    }
}

fn stop(mode: u8) -> Stop {
    match mode {
        0 => Stop::Light,
        1 => Stop::Soft,
        2 => Stop::SoftTimeout { timeout: TIMEOUT, grace: HARD_GRACE },
        _ => Stop::Hard { grace: HARD_GRACE },
    }
}

fn submit(
    pool: &Pool<TestTask, Record>,
    log: &Arc<Mutex<Log>>,
    number: usize,
    kind: Kind,
    group: Option<usize>,
    (width, deadline): (u32, Duration),
) -> Result<(), Refusal> {
    let run = if kind.is_long() { Run::Long { deadline: Some(deadline) } } else { Run::Short };
    let mut spec = Spec { run, width, ..Spec::short(TaskId::number(number as u64)) };
    spec.group = group.map(|group| GROUPS[group].into());
    let job = TestTask { number, kind, log: Arc::clone(log) };
    let record = Record(number, Arc::clone(log));
    if number.is_multiple_of(2) {
        return pool.submit_detached(spec, job, record).map_err(|refused| refused.reason);
    }
    let mut tasks = VecDeque::from([(spec, job, record)]);
    let refused = pool.submit_each(&mut tasks);
    assert_eq!(tasks.len(), usize::from(refused.is_err()));
    refused
}

fn assert_agreement(pool: &Pool<TestTask, Record>, log: &Arc<Mutex<Log>>, model: &Model) {
    let snapshot = pool.snapshot();
    let mut running: Vec<usize> =
        snapshot.tasks.iter().map(|task| task.id.to_string().parse().unwrap()).collect();
    running.sort_unstable();
    let log = log.lock().unwrap();
    let endings: BTreeMap<usize, Ending<()>> = log
        .endings
        .iter()
        .map(|(number, endings)| {
            assert_eq!(endings.len(), 1, "task {number} ended more than once");
            (*number, endings[0].clone())
        })
        .collect();
    assert_eq!(endings, model.endings);
    assert_eq!(running, model.running_numbers());
    assert_eq!(snapshot.queued, model.waiting());
    let (mut starts, mut expected) = (log.starts.clone(), model.starts.clone());
    if model.any_wide {
        // Shards end at the same moment in any order, and so do the starts that follow.
        starts.sort_unstable();
        expected.sort_unstable();
    }
    assert_eq!(starts, expected);
    let totals = snapshot.totals;
    assert_eq!(totals.admitted, model.admitted);
    let ended =
        totals.finished + totals.not_started + totals.interrupted + totals.abandoned + totals.panicked;
    assert_eq!(ended, model.endings.len() as u64);
    assert!(snapshot.workers.idle + snapshot.workers.busy <= WORKERS, "{snapshot:?}");
}

async fn run_orders(orders: Vec<Order>, min: usize, wide: bool) {
    let log = Arc::new(Mutex::new(Log::default()));
    let config = PoolConfig {
        name: "model".to_owned(),
        queue: QUEUE,
        workers: min..=WORKERS,
        idle_timeout: Duration::from_millis(3_500),
        default_deadline: Duration::from_secs(3600),
        grace: GRACE,
    };
    // The model has no pauses after panics.
    let restart = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    let options = PoolOptions { restart, ..PoolOptions::default() };
    let pool = Pool::start_with(config, tokio::runtime::Handle::current(), options).unwrap();
    let mut model = Model::new(GROUPS.len());
    let orders = orders.into_iter().chain([Order::Shutdown(3), Order::Wait(3)]);
    for order in orders {
        match order.clone() {
            Order::Submit(kind, group, width) => {
                let width = if wide { width } else { 1 };
                let number = model.submitted;
                let refused = submit(&pool, &log, number, kind, group, (width, model.next_deadline())).err();
                assert_eq!(refused, model.submit(kind, group, width), "{order:?}");
            }
            Order::Release(nth) => {
                if let Some(shard) = model.release(nth) {
                    log.lock().unwrap().go.remove(&shard).unwrap().send(()).unwrap();
                }
            }
            Order::Stop(number) => {
                let found = pool.stop(&TaskId::number(number as u64));
                assert_eq!(found, model.stop(number), "{order:?}");
            }
            Order::Pause(group) => {
                pool.group(GROUPS[group]).pause();
                model.pause(group, true);
            }
            Order::Resume(group) => {
                pool.group(GROUPS[group]).resume();
                model.pause(group, false);
            }
            Order::Cap(group, cap) => {
                pool.group(GROUPS[group]).cap(cap);
                model.cap(group, cap);
            }
            Order::StopGroup(group) => {
                let found = pool.group(GROUPS[group]).stop();
                assert_eq!(found, model.stop_group(group), "{order:?}");
            }
            Order::Wait(_) => {}
            Order::Shutdown(mode) => {
                pool.begin_shutdown(stop(mode));
                model.shutdown(mode);
            }
        }
        let ticks = if let Order::Wait(ticks) = order { ticks } else { 1 };
        for _ in 0..ticks {
            // A paused clock only advances when no task can run, so the pool has nothing left to do afterwards.
            tokio::time::sleep(TICK).await;
            model.pass(TICK);
            assert_agreement(&pool, &log, &model);
        }
    }
    let report = pool.stopped().await;
    assert_eq!(pool.snapshot().phase, Phase::Closed);
    assert_eq!(model.endings.len() as u64, model.admitted, "{report:?}");
    let refused = submit(&pool, &log, usize::MAX, Kind::Quick, None, (1, TICK));
    assert_eq!(refused, Err(Refusal::PoolClosed));
    let starts = log.lock().unwrap().starts.len();
    tokio::time::sleep(TICK * 100).await;
    assert_eq!(log.lock().unwrap().starts.len(), starts, "something started after the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn pool_and_model_agree(orders in proptest::collection::vec(order(), 1..60), min in 1..=WORKERS, wide: bool) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(run_orders(orders, min, wide));
    }
}
