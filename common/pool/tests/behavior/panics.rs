//! Tasks that panic.

use std::time::Duration;

use garenne_pool::{
    Backoff, Cause, Completion, Ending, OnEnd, Outcome, Pool, PoolOptions, Refusal, Spec, Stop, Task,
    TaskContext, TaskId,
};
use tokio::{runtime, time::Instant};

use crate::test_pool::{Behavior, TestPool, config, finished};

#[tokio::test(start_paused = true)]
async fn a_panic_fails_only_its_task_and_the_restart_is_counted() {
    let mut test = TestPool::new(4, 1..=1);
    test.submit(Spec::short("a"), Behavior::Panic).unwrap();
    test.submit(Spec::short("b"), Behavior::Return(2)).unwrap();
    assert_eq!(test.ending().await, ("a".to_owned(), Ending::Panicked { message: "test panic".to_owned() }));
    assert_eq!(test.ending().await, ("b".to_owned(), finished(2)));
    let snapshot = test.pool.snapshot();
    assert_eq!((snapshot.workers.restarts, snapshot.totals.panicked, snapshot.totals.finished), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_worker_pauses_longer_after_each_panic_in_a_row() {
    let second = Duration::from_secs(1);
    let restart = Backoff { base: second, cap: 4 * second };
    let options = PoolOptions { restart, ..PoolOptions::default() };
    let mut test = TestPool::with(config(9, 1..=1), options, runtime::Handle::current());
    for _ in 0..6 {
        test.submit(Spec::short("a"), Behavior::Panic).unwrap();
    }
    let mut last = Instant::now();
    for most in [0, 1, 2, 4, 4, 4] {
        test.ending().await;
        // With full jitter, a pause is between zero and its maximum.
        assert!(last.elapsed() <= most * second + Duration::from_millis(2), "{most} s: {:?}", last.elapsed());
        last = Instant::now();
    }
    assert_eq!(test.pool.snapshot().workers.restarts, 6);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_returns_ends_the_row_of_panics() {
    let restart = Backoff { base: Duration::from_millis(1), cap: Duration::MAX };
    let options = PoolOptions { restart, ..PoolOptions::default() };
    let mut test = TestPool::with(config(99, 1..=1), options, runtime::Handle::current());
    let begun = Instant::now();
    for number in 0..20 {
        test.submit(Spec::short("a"), Behavior::Panic).unwrap();
        test.submit(Spec::short("b"), Behavior::Return(number)).unwrap();
    }
    for _ in 0..40 {
        test.ending().await;
    }
    // 20 pauses of at most a millisecond, each rounded up by the timer. The last of 20 panics in a row would pause
    // for up to nine minutes.
    assert!(begun.elapsed() <= Duration::from_millis(60), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_started_task_that_fails_is_compensated_once_before_its_completion() {
    let mut test = TestPool::new(4, 2..=2);
    test.submit(Spec::short("panics"), Behavior::Panic).unwrap();
    test.submit(Spec::short("finishes"), Behavior::Return(1)).unwrap();
    test.submit(Spec::long("deaf"), Behavior::IgnoreCancel).unwrap();
    for _ in 0..3 {
        test.ending().await;
    }
    let panicked = Outcome::Panicked { message: "test panic".into() };
    assert_eq!(test.compensated.try_recv().unwrap(), ("panics".into(), panicked));
    let gave_up = Outcome::GaveUp { cause: Cause::Deadline, stuck: false };
    assert_eq!(test.compensated.try_recv().unwrap(), ("deaf".into(), gave_up));
    assert!(test.compensated.try_recv().is_err());
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        // `resume_unwind` skips the panic hook, which would print a backtrace.
        std::panic::resume_unwind(Box::new("dropped"));
    }
}

/// A task whose destructor panics.
struct DropPanics {
    _panics: Option<PanicsOnDrop>,
}

impl Task for DropPanics {
    type Output = ();

    async fn run(self, _cx: TaskContext) {}
}

struct PanickingCompletion(tokio::sync::mpsc::UnboundedSender<Outcome>);

impl Completion<()> for PanickingCompletion {
    fn complete(self, ending: Ending<()>) {
        self.0.send(ending.outcome()).unwrap();
        std::panic::resume_unwind(Box::new("in the completion"));
    }

    fn compensate(&mut self, _id: &TaskId, _ending: &Ending<()>) {
        std::panic::resume_unwind(Box::new("in the compensation"));
    }
}

#[tokio::test(start_paused = true)]
async fn panics_in_destructors_completions_and_compensations_do_not_stop_the_pool() {
    let pool = Pool::start(config(4, 1..=1), runtime::Handle::current()).unwrap();
    let (sender, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
    for panics in [Some(PanicsOnDrop), None] {
        pool.submit_detached(
            Spec::short("a"),
            DropPanics { _panics: panics },
            PanickingCompletion(sender.clone()),
        )
        .unwrap();
    }
    assert_eq!(outcomes.recv().await.unwrap(), Outcome::Panicked { message: "dropped".into() });
    assert_eq!(outcomes.recv().await.unwrap(), Outcome::Finished { cancelled_by: None });
    assert_eq!(pool.snapshot().workers.restarts, 1);
    pool.begin_shutdown(Stop::Soft);
    pool.stopped().await;
}

struct Panics;

impl Task for Panics {
    type Output = ();

    async fn run(self, _cx: TaskContext) {
        std::panic::resume_unwind(Box::new("again"));
    }
}

/// The memory of panics is bounded by the queue, not by their number.
#[tokio::test(start_paused = true)]
async fn panics_do_not_leak_memory_or_workers() {
    let panics: u32 = if std::env::var_os("GARENNE_TEST_FULL").is_some() { 1_000_000 } else { 50_000 };
    let pool = Pool::start(config(1024, 2..=2), runtime::Handle::current()).unwrap();
    let (room, mut has_room) = tokio::sync::mpsc::channel::<()>(1);
    let mut resident = Vec::new();
    let mut left = panics;
    while left > 0 {
        let room = room.clone();
        let end = OnEnd(move |_: Ending<()>| {
            // A full channel wakes the submitter anyway.
            let _ = room.try_send(());
        });
        match pool.submit_detached(Spec::short(TaskId::number(left.into())), Panics, end) {
            Ok(()) => {
                left -= 1;
                if left.is_multiple_of(panics / 10) {
                    resident.push(resident_kib());
                }
            }
            Err(refused) => {
                assert_eq!(refused.reason, Refusal::QueueFull { limit: 1024 });
                has_room.recv().await.unwrap();
            }
        }
    }
    pool.begin_shutdown(Stop::Light);
    let workers = pool.snapshot().workers;
    assert_eq!(workers.idle + workers.busy + workers.restarting, 2);
    pool.stopped().await;
    let snapshot = pool.snapshot();
    assert_eq!((snapshot.totals.panicked, snapshot.workers.restarts), (panics.into(), panics.into()));
    let (first, last) = (resident[0], resident[resident.len() - 1]);
    assert!(last < first + 4096, "resident memory grew from {first} to {last} KiB: {resident:?}");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
