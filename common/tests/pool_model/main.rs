//! Random orders to a pool, and the same orders to a model that is simple enough to be believed. After
//! each order, and at every moment in between at which something is due, both must agree on what
//! waits, what runs, and how everything else ended.

mod model;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::pool::{
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
        Just(Kind::Obeys),
        Just(Kind::Deaf),
        Just(Kind::Trips)
    ];
    // One more than there are workers is refused.
    let width = prop_oneof![3 => Just(1), 2 => 1..=WORKERS as u32 + 1];
    let group = 0..GROUPS.len();
    prop_oneof![
        12 => (kind, proptest::option::of(group.clone()), width)
            .prop_map(|(kind, group, width)| {
                // Whether one shard's giving up ends the next before a worker that gets free in the
                // same moment starts it is anybody's guess.
                let width = if kind == Kind::Deaf { 1 } else { width };
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

/// What the tasks report.
#[derive(Default)]
struct Log {
    endings: BTreeMap<usize, Vec<Ending<()>>>,
    starts: Vec<usize>,
    go: BTreeMap<Key, oneshot::Sender<()>>,
}

struct Job {
    number: usize,
    kind: Kind,
    log: Arc<Mutex<Log>>,
}

impl Task for Job {
    type Output = ();

    async fn run(self, cx: TaskContext) {
        self.log.lock().unwrap().starts.push(self.number);
        match self.kind {
            Kind::Quick => {}
            // Does not go through the panic hook, which would print each.
            Kind::Panics => std::panic::resume_unwind(Box::new("as asked")),
            Kind::Trips if cx.shard() > 0 => std::panic::resume_unwind(Box::new("as asked")),
            Kind::Holds => {
                let (go, hold) = oneshot::channel();
                self.log.lock().unwrap().go.insert((self.number, cx.shard()), go);
                hold.await.unwrap();
            }
            Kind::Obeys | Kind::Trips => drop(cx.cancelled().await),
            Kind::Deaf => std::future::pending().await,
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
    pool: &Pool<Job, Record>,
    log: &Arc<Mutex<Log>>,
    number: usize,
    kind: Kind,
    group: Option<usize>,
    (width, deadline): (u32, Duration),
) -> Result<(), Refusal> {
    let run = if kind.is_long() { Run::Long { deadline: Some(deadline) } } else { Run::Short };
    let mut spec = Spec { run, width, ..Spec::short(TaskId::number(number as u64)) };
    spec.group = group.map(|group| GROUPS[group].into());
    let job = Job { number, kind, log: Arc::clone(log) };
    let record = Record(number, Arc::clone(log));
    if number.is_multiple_of(2) {
        return pool.submit_detached(spec, job, record).map_err(|refused| refused.reason);
    }
    let mut tasks = VecDeque::from([(spec, job, record)]);
    let refused = pool.submit_each(&mut tasks);
    assert_eq!(tasks.len(), usize::from(refused.is_err()));
    refused
}

fn agree(pool: &Pool<Job, Record>, log: &Arc<Mutex<Log>>, model: &Model) {
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
        // Shards end in the same moment, and what each of them makes room for comes in that order.
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

async fn play(orders: Vec<Order>, min: usize, wide: bool) {
    let log = Arc::new(Mutex::new(Log::default()));
    let config = PoolConfig {
        name: "model".to_owned(),
        queue: QUEUE,
        workers: min..=WORKERS,
        idle_timeout: Duration::from_millis(3_500),
        default_deadline: Duration::from_secs(3600),
        grace: GRACE,
    };
    // No pauses: the model has none.
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
            // The paused clock only moves on when nothing is left to do, so this waits for all of it.
            tokio::time::sleep(TICK).await;
            model.pass(TICK);
            agree(&pool, &log, &model);
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
            .block_on(play(orders, min, wide));
    }
}
