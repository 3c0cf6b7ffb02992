//! The pool as its users see it: what each order does, what each ending is.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::pool::{
    Cause, Ending, OnEnd, Outcome, Phase, Pool, PoolConfig, Refusal, Report, Run, Spec, Status, Stop, Task,
    TaskContext,
};
use tokio::{runtime, sync::mpsc, sync::oneshot, time::Instant};

/// What a test task does once it runs.
enum Act {
    /// Returns its number.
    Return(u32),
    /// Waits to be let go, then returns; deaf to its token.
    Hold(oneshot::Receiver<()>, u32),
    /// Waits until told, then returns.
    Obey,
    /// Ignores everything, but gives the processor back.
    Deaf,
    /// Panics.
    Panic,
    /// Blocks its thread until let go.
    Block(std::sync::mpsc::Receiver<()>),
}

struct Job {
    act: Act,
    started: Option<mpsc::UnboundedSender<String>>,
}

impl Task for Job {
    type Output = u32;

    async fn run(self, cx: TaskContext) -> u32 {
        if let Some(started) = &self.started {
            started.send(cx.id().to_string()).unwrap();
        }
        match self.act {
            Act::Return(number) => number,
            Act::Hold(go, number) => {
                go.await.unwrap();
                number
            }
            Act::Obey => {
                cx.token().cancelled().await;
                cx.cancelled().await as u32
            }
            Act::Deaf => std::future::pending().await,
            Act::Panic => panic!("as asked"),
            Act::Block(go) => {
                go.recv().unwrap();
                7
            }
        }
    }
}

type Endings = mpsc::UnboundedReceiver<(String, Ending<u32>)>;
type End = OnEnd<Box<dyn FnOnce(Ending<u32>) + Send>>;

struct Bench {
    pool: Pool<Job, End>,
    endings: Endings,
    ended: mpsc::UnboundedSender<(String, Ending<u32>)>,
    starts: mpsc::UnboundedReceiver<String>,
    started: mpsc::UnboundedSender<String>,
}

fn config(queue: usize, workers: std::ops::RangeInclusive<usize>) -> PoolConfig {
    PoolConfig {
        name: "test".to_owned(),
        queue,
        workers,
        idle_timeout: Duration::from_secs(60),
        default_deadline: Duration::from_secs(30),
        grace: Duration::from_secs(2),
    }
}

impl Bench {
    fn new(config: PoolConfig) -> Self {
        let pool = Pool::start(config, runtime::Handle::current()).unwrap();
        let (ended, endings) = mpsc::unbounded_channel();
        let (started, starts) = mpsc::unbounded_channel();
        Self { pool, endings, ended, starts, started }
    }

    fn parts(&self, id: &str, act: Act) -> (Job, End) {
        let ended = self.ended.clone();
        let id = id.to_owned();
        let end: Box<dyn FnOnce(Ending<u32>) + Send> =
            Box::new(move |ending| ended.send((id, ending)).unwrap());
        (Job { act, started: Some(self.started.clone()) }, OnEnd(end))
    }

    fn submit(&self, spec: Spec, act: Act) -> Result<garenne_common::pool::Handle, Refusal> {
        let (job, end) = self.parts(&spec.id.to_string(), act);
        self.pool.submit(spec, job, end).map_err(|refused| refused.reason)
    }

    async fn ending(&mut self) -> (String, Ending<u32>) {
        self.endings.recv().await.unwrap()
    }

    async fn start(&mut self) -> String {
        self.starts.recv().await.unwrap()
    }
}

const fn finished(output: u32) -> Ending<u32> {
    Ending::Finished { output, told: None }
}

#[tokio::test(start_paused = true)]
async fn first_in_is_first_started() {
    let mut bench = Bench::new(config(10, 1..=1));
    for number in 0..10 {
        bench.submit(Spec::short(number.to_string()), Act::Return(number)).unwrap();
    }
    for number in 0..10 {
        assert_eq!(bench.ending().await, (number.to_string(), finished(number)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_bounds_waiting_and_running_together_and_a_refusal_gives_the_task_back() {
    let mut bench = Bench::new(config(2, 1..=1));
    let (go, hold) = oneshot::channel();
    bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    let (job, end) = bench.parts("c", Act::Return(3));
    let refused = bench.pool.submit(Spec::short("c"), job, end).unwrap_err();
    assert_eq!(refused.reason, Refusal::QueueFull { limit: 2 });
    assert_eq!(refused.to_string(), "queue full: 2 tasks are waiting or running, the most allowed");
    go.send(()).unwrap();
    assert_eq!(bench.ending().await.0, "a");
    // What was refused is whole, and there is room as soon as the completion was called.
    let (job, end) = refused.task;
    bench.pool.submit_detached(Spec::short("c"), job, end).unwrap();
    assert_eq!(bench.ending().await, ("b".to_owned(), finished(2)));
    assert_eq!(bench.ending().await, ("c".to_owned(), finished(3)));
}

#[tokio::test(start_paused = true)]
async fn refusals_say_what_they_refuse() {
    let bench = Bench::new(config(4, 1..=2));
    let wide = bench.submit(Spec::short("a").width(3), Act::Return(1)).unwrap_err();
    assert_eq!(wide.to_string(), "too many workers: 3 asked for, at most 2");
    let whole = bench.submit(Spec::short("a").width(2), Act::Return(1)).unwrap_err();
    assert_eq!(whole.to_string(), "width is 2: must be 1 for a task that cannot be sharded");
    let none = bench.submit(Spec::short("a").width(0), Act::Return(1)).unwrap_err();
    assert_eq!(none, Refusal::NotSharded { asked: 0 });
    bench.pool.begin_shutdown(Stop::Light);
    assert_eq!(bench.submit(Spec::short("a"), Act::Return(1)).unwrap_err().to_string(), "pool closed");
}

#[tokio::test(start_paused = true)]
async fn a_long_task_is_told_at_its_deadline_and_given_up_after_the_grace() {
    let mut bench = Bench::new(config(4, 2..=2));
    let begun = Instant::now();
    bench.submit(Spec::long("obeys").deadline(Duration::from_secs(5)), Act::Obey).unwrap();
    let deaf = bench.submit(Spec::long("deaf"), Act::Deaf).unwrap();
    let told = Some(Cause::Deadline);
    assert_eq!(bench.ending().await, ("obeys".to_owned(), Ending::Finished { output: 0, told }));
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert_eq!(deaf.status(), Status::Running);
    let gave_up = Ending::GaveUp { cause: Cause::Deadline, stuck: false };
    assert_eq!(bench.ending().await, ("deaf".to_owned(), gave_up));
    assert_eq!(begun.elapsed().as_secs(), 32);
    assert_eq!(deaf.error(), Some(Outcome::GaveUp { cause: Cause::Deadline, stuck: false }));
}

#[tokio::test(start_paused = true)]
async fn a_short_task_has_no_deadline_and_cannot_be_stopped_once_it_runs() {
    let mut bench = Bench::new(config(4, 1..=1));
    let (go, hold) = oneshot::channel();
    let handle = bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    assert_eq!(bench.start().await, "a");
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(!handle.stop());
    assert_eq!(handle.status(), Status::Running);
    go.send(()).unwrap();
    assert_eq!(handle.wait().await, Outcome::Finished { told: None });
    assert_eq!(handle.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_task_that_is_stopped_never_starts() {
    let mut bench = Bench::new(config(4, 1..=1));
    let (go, hold) = oneshot::channel();
    bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    assert!(bench.pool.stop(&"b".into()));
    assert!(!bench.pool.stop(&"b".into()));
    assert_eq!(bench.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Stopped }));
    go.send(()).unwrap();
    assert_eq!(bench.ending().await.0, "a");
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_task_only_and_the_restart_is_counted() {
    let mut bench = Bench::new(config(4, 1..=1));
    bench.submit(Spec::short("a"), Act::Panic).unwrap();
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    assert_eq!(bench.ending().await, ("a".to_owned(), Ending::Panicked { message: "as asked".to_owned() }));
    assert_eq!(bench.ending().await, ("b".to_owned(), finished(2)));
    let snapshot = bench.pool.snapshot();
    assert_eq!((snapshot.workers.restarts, snapshot.totals.panicked, snapshot.totals.finished), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn light_finishes_what_waits() {
    let mut bench = Bench::new(config(4, 1..=1));
    for number in 0..4 {
        bench.submit(Spec::short(number.to_string()), Act::Return(number)).unwrap();
    }
    bench.pool.begin_shutdown(Stop::Light);
    assert_eq!(bench.pool.stopped().await, Report { finished: 4, ..Report::default() });
    assert_eq!(bench.ending().await.1, finished(0));
    assert_eq!(bench.pool.snapshot().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn soft_finishes_what_runs_and_hands_back_what_waits() {
    let mut bench = Bench::new(config(4, 1..=1));
    let (go, hold) = oneshot::channel();
    bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    assert_eq!(bench.start().await, "a");
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    bench.pool.begin_shutdown(Stop::Soft);
    bench.pool.begin_shutdown(Stop::Light);
    assert_eq!(bench.pool.snapshot().phase, Phase::Soft);
    assert_eq!(bench.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    go.send(()).unwrap();
    assert_eq!(bench.pool.stopped().await, Report { finished: 1, not_started: 1, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn soft_with_a_timeout_turns_hard() {
    let mut bench = Bench::new(config(4, 3..=3));
    let begun = Instant::now();
    let ten_minutes = Duration::from_secs(600);
    bench.submit(Spec::long("obeys").deadline(ten_minutes), Act::Obey).unwrap();
    bench.submit(Spec::long("deaf").deadline(ten_minutes), Act::Deaf).unwrap();
    bench.submit(Spec::short("short"), Act::Deaf).unwrap();
    for _ in 0..3 {
        bench.start().await;
    }
    let (timeout, grace) = (Duration::from_secs(25), Duration::from_secs(3));
    bench.pool.begin_shutdown(Stop::SoftTimeout { timeout, grace });
    let report = bench.pool.stopped().await;
    assert_eq!(report, Report { interrupted: 2, abandoned: 1, ..Report::default() });
    assert_eq!(begun.elapsed().as_secs(), 28);
    let told = Some(Cause::Shutdown);
    assert_eq!(bench.ending().await, ("obeys".to_owned(), Ending::Finished { output: 2, told }));
}

#[tokio::test(start_paused = true)]
async fn hard_cuts_a_soft_shutdown_short() {
    let mut bench = Bench::new(config(4, 1..=1));
    bench.submit(Spec::long("a"), Act::Obey).unwrap();
    bench.start().await;
    bench.pool.begin_shutdown(Stop::Soft);
    bench.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    assert_eq!(bench.pool.stopped().await, Report { interrupted: 1, ..Report::default() });
}

/// Real time: a thread that is blocked cannot be part of a paused clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_task_is_counted_and_its_worker_replaced() {
    let mut settings = config(4, 1..=1);
    settings.grace = Duration::from_millis(20);
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for spec in [Spec::long("a"), Spec::long("a").on_threads()] {
        let pool = Pool::start(settings.clone(), tasks.handle().clone()).unwrap();
        let (go, block) = std::sync::mpsc::channel();
        let end: End = OnEnd(Box::new(|_| ()));
        let job = Job { act: Act::Block(block), started: None };
        let stuck = pool.submit(spec.deadline(Duration::from_millis(20)), job, end).unwrap();
        assert_eq!(stuck.wait().await, Outcome::GaveUp { cause: Cause::Deadline, stuck: true });
        assert_eq!(pool.snapshot().stuck, 1);
        let end: End = OnEnd(Box::new(|_| ()));
        let next = pool.submit(Spec::short("b"), Job { act: Act::Return(1), started: None }, end).unwrap();
        assert_eq!(next.wait().await, Outcome::Finished { told: None });
        go.send(()).unwrap();
        pool.begin_shutdown(Stop::Soft);
        pool.stopped().await;
    }
    tasks.shutdown_background();
}

#[tokio::test]
async fn a_runtime_that_goes_away_ends_every_task() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pool = Pool::start(config(8, 1..=1), tasks.handle().clone()).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (started, mut starts) = mpsc::unbounded_channel();
    for id in ["a", "b"] {
        let log = Arc::clone(&log);
        let end: End = OnEnd(Box::new(move |ending| log.lock().unwrap().push((id, ending))));
        let job = Job { act: Act::Deaf, started: Some(started.clone()) };
        let spec = Spec { run: Run::Short, ..Spec::short(id) };
        pool.submit_detached(spec, job, end).unwrap();
    }
    assert_eq!(starts.recv().await.unwrap(), "a");
    tasks.shutdown_background();
    pool.stopped().await;
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    let not_started = Ending::NotStarted { cause: Cause::Shutdown };
    assert_eq!(*log.lock().unwrap(), [("a", gave_up), ("b", not_started)]);
}
