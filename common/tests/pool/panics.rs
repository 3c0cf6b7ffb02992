//! Tasks that panic.

use std::time::Duration;

use garenne_common::pool::{
    Backoff, Cause, Completion, Ending, OnEnd, Outcome, Pool, PoolOptions, Refusal, Spec, Stop, Task,
    TaskContext, TaskId,
};
use tokio::{runtime, time::Instant};

use crate::bench::{Act, Bench, config, finished};

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_task_only_and_the_restart_is_counted() {
    let mut bench = Bench::new(4, 1..=1);
    bench.submit(Spec::short("a"), Act::Panic).unwrap();
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    assert_eq!(bench.ending().await, ("a".to_owned(), Ending::Panicked { message: "as asked".to_owned() }));
    assert_eq!(bench.ending().await, ("b".to_owned(), finished(2)));
    let snapshot = bench.pool.snapshot();
    assert_eq!((snapshot.workers.restarts, snapshot.totals.panicked, snapshot.totals.finished), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_worker_pauses_longer_after_each_panic_in_a_row() {
    let second = Duration::from_secs(1);
    let restart = Backoff { base: second, cap: 4 * second };
    let options = PoolOptions { restart, ..PoolOptions::default() };
    let mut bench = Bench::with(config(9, 1..=1), options, runtime::Handle::current());
    for _ in 0..6 {
        bench.submit(Spec::short("a"), Act::Panic).unwrap();
    }
    let mut last = Instant::now();
    for most in [0, 1, 2, 4, 4, 4] {
        bench.ending().await;
        // With full jitter each pause is between none and its most.
        assert!(last.elapsed() <= most * second + Duration::from_millis(2), "{most} s: {:?}", last.elapsed());
        last = Instant::now();
    }
    assert_eq!(bench.pool.snapshot().workers.restarts, 6);
}

#[tokio::test(start_paused = true)]
async fn what_was_started_and_not_completed_is_undone_once_and_first() {
    let mut bench = Bench::new(4, 2..=2);
    bench.submit(Spec::short("panics"), Act::Panic).unwrap();
    bench.submit(Spec::short("finishes"), Act::Return(1)).unwrap();
    bench.submit(Spec::long("deaf"), Act::Deaf).unwrap();
    for _ in 0..3 {
        bench.ending().await;
    }
    let panicked = Outcome::Panicked { message: "as asked".into() };
    assert_eq!(bench.undone.try_recv().unwrap(), ("panics".into(), panicked));
    let gave_up = Outcome::GaveUp { cause: Cause::Deadline, stuck: false };
    assert_eq!(bench.undone.try_recv().unwrap(), ("deaf".into(), gave_up));
    assert!(bench.undone.try_recv().is_err());
}

struct Boom;

impl Drop for Boom {
    fn drop(&mut self) {
        // Does not go through the panic hook, which would print it.
        std::panic::resume_unwind(Box::new("dropped"));
    }
}

/// A task whose destructor panics, whether it ran or not.
struct Fragile {
    _boom: Option<Boom>,
}

impl Task for Fragile {
    type Output = ();

    async fn run(self, _cx: TaskContext) {}
}

struct Panicky(tokio::sync::mpsc::UnboundedSender<Outcome>);

impl Completion<()> for Panicky {
    fn complete(self, ending: Ending<()>) {
        self.0.send(ending.outcome()).unwrap();
        std::panic::resume_unwind(Box::new("in the completion"));
    }

    fn compensate(&mut self, _id: &TaskId, _ending: &Ending<()>) {
        std::panic::resume_unwind(Box::new("in the compensation"));
    }
}

#[tokio::test(start_paused = true)]
async fn panics_in_destructors_completions_and_hooks_hurt_nobody() {
    let pool = Pool::start(config(4, 1..=1), runtime::Handle::current()).unwrap();
    let (sender, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
    for boom in [Some(Boom), None] {
        pool.submit_detached(Spec::short("a"), Fragile { _boom: boom }, Panicky(sender.clone())).unwrap();
    }
    assert_eq!(outcomes.recv().await.unwrap(), Outcome::Panicked { message: "dropped".into() });
    assert_eq!(outcomes.recv().await.unwrap(), Outcome::Finished { told: None });
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

/// The bytes this process has allocated and not freed are bounded by the queue, not by the number of
/// panics: what 100,000 leave behind, a million do.
#[tokio::test(start_paused = true)]
async fn a_million_panics_leave_the_pool_as_it_was() {
    let pool = Pool::start(config(1024, 2..=2), runtime::Handle::current()).unwrap();
    let (room, mut has_room) = tokio::sync::mpsc::channel::<()>(1);
    let mut resident = Vec::new();
    let mut left = 1_000_000_u32;
    while left > 0 {
        let room = room.clone();
        let end = OnEnd(move |_: Ending<()>| {
            // Full means that somebody will look anyway.
            let _ = room.try_send(());
        });
        match pool.submit_detached(Spec::short(TaskId::number(left.into())), Panics, end) {
            Ok(()) => {
                left -= 1;
                if left.is_multiple_of(100_000) {
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
    assert_eq!((snapshot.totals.panicked, snapshot.workers.restarts), (1_000_000, 1_000_000));
    let (first, last) = (resident[0], resident[resident.len() - 1]);
    assert!(last < first + 4096, "resident memory grew from {first} to {last} KiB: {resident:?}");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
