//! Panics of user code other than tasks: observers, destructors and trace ids. None of them ends a worker, loses a
//! task or keeps the pool from closing.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use garenne_pool::{
    Completion, Ending, EndingKind, Observer, Outcome, Placement, Pool, PoolOptions, Refusal, Report, Spec,
    Stop, Task, TaskContext,
};
use tokio::{
    runtime,
    sync::{Notify, mpsc},
};

use crate::test_pool::{Behavior, TestPool, config, finished, settle};

/// `resume_unwind` skips the panic hook, which would print a backtrace.
fn silent_panic() -> ! {
    resume_unwind(Box::new("user panic"))
}

#[derive(Default)]
struct PanickingObserver {
    calls: AtomicU64,
}

impl Observer for PanickingObserver {
    fn started(&self, _waited: Duration, _placement: Placement) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        silent_panic();
    }

    fn ended(&self, _ran: Duration, _ending: EndingKind) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        silent_panic();
    }
}

#[tokio::test(start_paused = true)]
async fn a_panicking_observer_does_not_affect_tasks_and_workers() {
    let observer = Arc::new(PanickingObserver::default());
    let options = PoolOptions { observer: Some(Arc::clone(&observer) as _), ..PoolOptions::default() };
    let mut test = TestPool::with(config(9, 1..=1), options, runtime::Handle::current());
    for number in 0..3 {
        test.submit(Spec::short(number.to_string()), Behavior::Return(number)).unwrap();
    }
    // Short, because the paused clock may pass a deadline while the thread runs.
    test.submit(Spec::short("thread").on_threads(), Behavior::Return(3)).unwrap();
    for number in 0..4 {
        assert_eq!(test.ending().await.1, finished(number));
    }
    assert_eq!(observer.calls.load(Ordering::Relaxed), 8);
    let workers = test.pool.snapshot().workers;
    assert_eq!((workers.restarts, workers.idle + workers.busy), (0, 1));
    test.pool.begin_shutdown(Stop::Soft);
    assert_eq!(test.pool.stopped().await, Report::default());
}

/// Panics when it is dropped with a set flag.
struct PanicsOnDrop(bool);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if self.0 {
            silent_panic();
        }
    }
}

/// A task, or shard, whose output panics when it is dropped; shards other than the first panic when they run.
struct Sharded {
    go: Arc<Notify>,
    /// Panics when the task is dropped before it runs.
    unstarted: PanicsOnDrop,
    second_fails: bool,
}

impl Task for Sharded {
    type Output = PanicsOnDrop;

    async fn run(mut self, cx: TaskContext) -> PanicsOnDrop {
        self.unstarted.0 = false;
        if cx.shard() > 0 && self.second_fails {
            self.go.notified().await;
            silent_panic();
        }
        PanicsOnDrop(self.second_fails)
    }

    fn shard(&self) -> Option<Self> {
        let unstarted = PanicsOnDrop(self.unstarted.0);
        Some(Self { go: Arc::clone(&self.go), unstarted, second_fails: self.second_fails })
    }
}

struct ReportOutcome(mpsc::UnboundedSender<Outcome>);

impl Completion<PanicsOnDrop> for ReportOutcome {
    fn complete(self, ending: Ending<PanicsOnDrop>) {
        self.0.send(ending.outcome()).unwrap();
    }

    fn trace_id(&self) -> Option<&str> {
        silent_panic()
    }
}

fn sharded(unstarted_panics: bool, second_fails: bool) -> Sharded {
    Sharded { go: Arc::default(), unstarted: PanicsOnDrop(unstarted_panics), second_fails }
}

#[tokio::test(start_paused = true)]
async fn panicking_destructors_of_unstarted_shards_do_not_keep_the_pool_open() {
    let pool = Pool::start(config(9, 2..=2), runtime::Handle::current()).unwrap();
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    pool.group("g").pause();
    for id in ["a", "b", "c"] {
        let spec = Spec::short(id).width(2).group("g");
        pool.submit_detached(spec, sharded(true, false), ReportOutcome(sender.clone())).unwrap();
    }
    assert!(pool.stop(&"a".into()));
    pool.begin_shutdown(Stop::Soft);
    assert_eq!(pool.stopped().await, Report { not_started: 2, ..Report::default() });
    for _ in 0..3 {
        assert!(matches!(outcomes.recv().await, Some(Outcome::NotStarted { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_task_is_returned_although_the_destructors_of_its_shards_panic() {
    let pool = Pool::start(config(2, 2..=2), runtime::Handle::current()).unwrap();
    let (sender, _outcomes) = mpsc::unbounded_channel();
    let part = |id: &str| (Spec::short(id).width(2), sharded(true, false), ReportOutcome(sender.clone()));
    let refused = pool.submit_together(vec![part("a"), part("b"), part("c")]).unwrap_err();
    assert_eq!((refused.reason, refused.task.len()), (Refusal::QueueFull { limit: 2 }, 3));
    let mut tasks = refused.task;
    tasks[2].0.width = 3;
    let refused = pool.submit_together(tasks).unwrap_err();
    assert_eq!((refused.reason, refused.task.len()), (Refusal::TooManyWorkers { asked: 3, max: 2 }, 3));
    for (_, task, _) in refused.task {
        let mut task = task;
        task.unstarted.0 = false;
    }
    pool.begin_shutdown(Stop::Light);
    let (spec, task, report) = part("d");
    let mut refused = pool.submit(spec, task, report).unwrap_err();
    assert_eq!(refused.reason, Refusal::PoolClosed);
    refused.task.0.unstarted.0 = false;
}

#[tokio::test(start_paused = true)]
async fn panicking_destructors_of_the_outputs_of_a_failed_task_do_not_end_its_worker() {
    let pool = Pool::start(config(9, 2..=2), runtime::Handle::current()).unwrap();
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    let task = sharded(false, true);
    let go = Arc::clone(&task.go);
    pool.submit_detached(Spec::short("a").width(2), task, ReportOutcome(sender)).unwrap();
    settle().await;
    // The first shard has returned its output. The second one fails the task.
    go.notify_one();
    assert_eq!(outcomes.recv().await, Some(Outcome::Panicked { message: "user panic".into() }));
    let workers = pool.snapshot().workers;
    assert_eq!((workers.restarts, workers.idle + workers.busy + workers.restarting), (1, 2));
    pool.begin_shutdown(Stop::Soft);
    pool.stopped().await;
}

/// Blocks its thread until the sender is dropped.
struct Blocks(std::sync::mpsc::Receiver<()>);

impl Task for Blocks {
    type Output = PanicsOnDrop;

    async fn run(self, _cx: TaskContext) -> PanicsOnDrop {
        let _ = self.0.recv();
        PanicsOnDrop(true)
    }
}

/// In real time, because the clock cannot be paused while a thread is blocked.
#[tokio::test]
async fn a_stuck_task_with_a_panicking_trace_id_and_output_is_given_up_and_its_thread_returns() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut settings = config(4, 1..=1);
    settings.grace = Duration::from_millis(1);
    let pool = Pool::start(settings, tasks.handle().clone()).unwrap();
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    for placement in [Placement::Runtime, Placement::Threads] {
        let (go, block) = std::sync::mpsc::channel();
        let mut spec = Spec::long("a").deadline(Duration::from_millis(1));
        spec.placement = placement;
        pool.submit_detached(spec, Blocks(block), ReportOutcome(sender.clone())).unwrap();
        assert!(matches!(outcomes.recv().await, Some(Outcome::GaveUp { stuck: true, .. })));
        assert_eq!(pool.snapshot().stuck, 1);
        drop(go);
        while pool.snapshot().stuck > 0 {
            tokio::task::yield_now().await;
        }
    }
    pool.begin_shutdown(Stop::Soft);
    pool.stopped().await;
    tasks.shutdown_background();
}
