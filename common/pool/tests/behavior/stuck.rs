//! Tasks that block their thread.

use std::time::Duration;

use garenne_pool::{Cause, Ending, PoolOptions, Spec, Stop};
use tokio::runtime;

use crate::test_pool::{Behavior, TestPool, config, finished};

/// In real time, because the clock cannot be paused while a thread is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_task_is_counted_and_its_worker_is_replaced() {
    let mut settings = config(4, 1..=1);
    settings.grace = Duration::from_millis(20);
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for spec in [Spec::long("a"), Spec::long("a").on_threads()] {
        let mut test = TestPool::with(settings.clone(), PoolOptions::default(), tasks.handle().clone());
        let (go, block) = std::sync::mpsc::channel();
        test.submit(spec.deadline(Duration::from_millis(20)), Behavior::Block(block)).unwrap();
        let gave_up = Ending::GaveUp { cause: Cause::Deadline, stuck: true };
        assert_eq!(test.ending().await, ("a".to_owned(), gave_up));
        assert_eq!(test.pool.snapshot().stuck, 1);
        assert_eq!(test.pool.snapshot().totals.abandoned, 1);
        test.submit(Spec::short("b"), Behavior::Return(1)).unwrap();
        assert_eq!(test.ending().await, ("b".to_owned(), finished(1)));
        go.send(()).unwrap();
        test.pool.begin_shutdown(Stop::Soft);
        test.pool.stopped().await;
    }
    tasks.shutdown_background();
}

#[tokio::test]
async fn hard_shutdown_ends_after_its_grace_period_although_all_threads_are_blocked() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut test = TestPool::with(config(4, 2..=2), PoolOptions::default(), tasks.handle().clone());
    let mut locks = Vec::new();
    for id in ["a", "b"] {
        let (go, block) = std::sync::mpsc::channel();
        test.submit(Spec::short(id), Behavior::Block(block)).unwrap();
        locks.push(go);
    }
    test.start().await;
    test.start().await;
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::from_millis(30) });
    assert_eq!(test.pool.stopped().await.abandoned, 2);
    drop(locks);
    tasks.shutdown_background();
}

#[tokio::test]
async fn tasks_on_threads_leave_the_runtime_free() {
    // The one thread of the runtime could not run both tasks at once.
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut test = TestPool::with(config(4, 2..=2), PoolOptions::default(), tasks.handle().clone());
    let (go, block) = std::sync::mpsc::channel();
    test.submit(Spec::short("spins").on_threads(), Behavior::Block(block)).unwrap();
    assert_eq!(test.start().await, "spins");
    assert!(test.pool.snapshot().tasks[0].on_thread);
    test.submit(Spec::short("other"), Behavior::Return(1)).unwrap();
    assert_eq!(test.ending().await, ("other".to_owned(), finished(1)));
    go.send(()).unwrap();
    assert_eq!(test.ending().await, ("spins".to_owned(), finished(7)));
    tasks.shutdown_background();
}

/// Quick tasks make the workers take batches. Then one task blocks its thread, with the rest of its batch behind it.
/// The other worker must run those tasks, even if the blocked one had just woken it: tokio then keeps it for the
/// blocked thread.
#[tokio::test]
async fn no_task_waits_behind_a_blocked_task_of_its_batch() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut test = TestPool::with(config(2000, 2..=2), PoolOptions::default(), tasks.handle().clone());
    let (go, block) = std::sync::mpsc::channel();
    let mut block = Some(block);
    for number in 0..1500 {
        let behavior = match block.take_if(|_| number == 700) {
            Some(block) => Behavior::Block(block),
            None => Behavior::Return(number),
        };
        test.submit(Spec::short(number.to_string()), behavior).unwrap();
    }
    for _ in 0..1499 {
        assert_ne!(test.ending().await.0, "700");
    }
    go.send(()).unwrap();
    assert_eq!(test.ending().await, ("700".to_owned(), finished(7)));
    tasks.shutdown_background();
}
