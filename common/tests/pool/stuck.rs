//! Tasks that never give the processor back.

use std::time::Duration;

use garenne_common::pool::{Cause, Ending, PoolOptions, Spec, Stop};
use tokio::runtime;

use crate::bench::{Act, Bench, config, finished};

/// Real time: a thread that is blocked cannot be part of a paused clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_task_is_counted_and_its_worker_replaced() {
    let mut settings = config(4, 1..=1);
    settings.grace = Duration::from_millis(20);
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for spec in [Spec::long("a"), Spec::long("a").on_threads()] {
        let mut bench = Bench::with(settings.clone(), PoolOptions::default(), tasks.handle().clone());
        let (go, block) = std::sync::mpsc::channel();
        bench.submit(spec.deadline(Duration::from_millis(20)), Act::Block(block)).unwrap();
        let gave_up = Ending::GaveUp { cause: Cause::Deadline, stuck: true };
        assert_eq!(bench.ending().await, ("a".to_owned(), gave_up));
        assert_eq!(bench.pool.snapshot().stuck, 1);
        assert_eq!(bench.pool.snapshot().totals.abandoned, 1);
        bench.submit(Spec::short("b"), Act::Return(1)).unwrap();
        assert_eq!(bench.ending().await, ("b".to_owned(), finished(1)));
        go.send(()).unwrap();
        bench.pool.begin_shutdown(Stop::Soft);
        bench.pool.stopped().await;
    }
    tasks.shutdown_background();
}

/// Both threads of the runtime are blocked; the pool is closed on time all the same.
#[tokio::test]
async fn hard_is_over_after_its_grace_whatever_the_tasks_do() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut bench = Bench::with(config(4, 2..=2), PoolOptions::default(), tasks.handle().clone());
    let mut locks = Vec::new();
    for id in ["a", "b"] {
        let (go, block) = std::sync::mpsc::channel();
        bench.submit(Spec::short(id), Act::Block(block)).unwrap();
        locks.push(go);
    }
    bench.start().await;
    bench.start().await;
    bench.pool.begin_shutdown(Stop::Hard { grace: Duration::from_millis(30) });
    assert_eq!(bench.pool.stopped().await.abandoned, 2);
    drop(locks);
    tasks.shutdown_background();
}

#[tokio::test]
async fn cpu_bound_tasks_run_on_threads_and_leave_the_runtime_free() {
    // One thread in the runtime: it could not serve both at once.
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut bench = Bench::with(config(4, 2..=2), PoolOptions::default(), tasks.handle().clone());
    let (go, block) = std::sync::mpsc::channel();
    bench.submit(Spec::short("spins").on_threads(), Act::Block(block)).unwrap();
    assert_eq!(bench.start().await, "spins");
    assert!(bench.pool.snapshot().tasks[0].on_thread);
    bench.submit(Spec::short("other"), Act::Return(1)).unwrap();
    assert_eq!(bench.ending().await, ("other".to_owned(), finished(1)));
    go.send(()).unwrap();
    assert_eq!(bench.ending().await, ("spins".to_owned(), finished(7)));
    tasks.shutdown_background();
}

/// A quick run makes the worker take batches; then one of them blocks its thread, with the rest of its
/// batch behind it. Another worker must come to their aid.
#[tokio::test]
async fn nobody_waits_for_his_batch() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut bench = Bench::with(config(2000, 2..=2), PoolOptions::default(), tasks.handle().clone());
    let (go, block) = std::sync::mpsc::channel();
    let mut block = Some(block);
    for number in 0..1500 {
        let act = match block.take_if(|_| number == 700) {
            Some(block) => Act::Block(block),
            None => Act::Return(number),
        };
        bench.submit(Spec::short(number.to_string()), act).unwrap();
    }
    for _ in 0..1499 {
        assert_ne!(bench.ending().await.0, "700");
    }
    go.send(()).unwrap();
    assert_eq!(bench.ending().await, ("700".to_owned(), finished(7)));
    tasks.shutdown_background();
}
