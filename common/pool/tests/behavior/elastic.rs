//! How the pool grows and shrinks, and how single workers are stopped.

use std::time::Duration;

use garenne_pool::{Cause, Ending, PoolOptions, Spec};
use tokio::runtime;

use crate::test_pool::{Behavior, TestPool, config, finished, settle};

fn alive(test: &TestPool) -> (usize, usize) {
    let workers = test.pool.snapshot().workers;
    (workers.idle, workers.busy)
}

#[tokio::test(start_paused = true)]
async fn the_task_that_makes_the_pool_grow_is_run() {
    let mut test = TestPool::new(9, 1..=3);
    let mut holds = Vec::new();
    for (number, workers) in [("1", 1), ("2", 2), ("3", 3), ("4", 3)] {
        holds.push(test.hold(Spec::short(number)));
        let expected: &[&str] = if number == "4" { &[] } else { &[number] };
        assert_eq!(test.starts().await, expected);
        assert_eq!(alive(&test), (0, workers));
    }
    for hold in holds {
        hold.send(()).unwrap();
    }
    let ended = test.ended().await;
    assert_eq!(ended.len(), 4);
    assert!(ended.iter().all(|(_, ending)| *ending == finished(0)));
}

#[tokio::test(start_paused = true)]
async fn workers_above_the_minimum_exit_after_the_idle_timeout_and_are_started_again() {
    let mut test = TestPool::new(9, 1..=4);
    for _ in 0..2 {
        let holds: Vec<_> = (0..4).map(|number: u32| test.hold(Spec::short(number.to_string()))).collect();
        assert_eq!(test.starts().await.len(), 4);
        for hold in holds {
            hold.send(()).unwrap();
        }
        assert_eq!(test.ended().await.len(), 4);
        assert_eq!(alive(&test), (4, 0));
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(alive(&test), (4, 0));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(alive(&test), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_does_not_exit() {
    let mut test = TestPool::new(9, 1..=2);
    let first = test.hold(Spec::short("a"));
    let second = test.hold(Spec::short("b"));
    assert_eq!(test.starts().await.len(), 2);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(alive(&test), (0, 2));
    first.send(()).unwrap();
    second.send(()).unwrap();
    assert_eq!(test.ended().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_stopped_after_its_task_or_at_once() {
    let mut test = TestPool::new(9, 1..=1);
    let go = test.hold(Spec::short("short"));
    assert_eq!(test.start().await, "short");
    let worker = test.pool.snapshot().tasks[0].worker;
    assert!(test.pool.stop_worker(worker, true));
    test.submit(Spec::long("long"), Behavior::AwaitCancel).unwrap();
    assert!(test.starts().await.is_empty());
    go.send(()).unwrap();
    assert_eq!(test.ending().await, ("short".to_owned(), finished(0)));
    // Another worker has replaced it.
    assert_eq!(test.start().await, "long");
    let next = test.pool.snapshot().tasks[0].worker;
    assert_ne!(worker, next);
    assert!(!test.pool.stop_worker(worker, true));
    assert!(test.pool.stop_worker(next, true));
    let cancelled_by = Some(Cause::Stopped);
    assert_eq!(test.ending().await, ("long".to_owned(), Ending::Finished { output: 1, cancelled_by }));
    test.starts().await;
    assert_eq!(alive(&test), (1, 0));
    let idle = next + 1;
    assert!(test.pool.stop_worker(idle, false));
    test.starts().await;
    assert_eq!(alive(&test), (1, 0));
}

/// The pool starts no more busy workers than the runtime has threads. It must notice if a thread is only blocked.
#[tokio::test]
async fn the_pool_grows_although_all_threads_seem_busy_if_they_are_blocked() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut test = TestPool::with(config(9, 1..=2), PoolOptions::default(), tasks.handle().clone());
    // `block_in_place` moves the runtime to another thread, which the pool cannot see.
    let (go, block) = std::sync::mpsc::channel();
    test.submit(Spec::short("blocks"), Behavior::BlockInPlace(block)).unwrap();
    assert_eq!(test.start().await, "blocks");
    test.submit(Spec::short("next"), Behavior::Return(1)).unwrap();
    assert_eq!(test.ending().await, ("next".to_owned(), finished(1)));
    go.send(()).unwrap();
    assert_eq!(test.ending().await, ("blocks".to_owned(), finished(7)));
    tasks.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_counts_from_the_last_task_of_each_worker() {
    let mut test = TestPool::new(9, 1..=3);
    let holds: Vec<_> = (0..3).map(|number: u32| test.hold(Spec::short(number.to_string()))).collect();
    assert_eq!(test.starts().await.len(), 3);
    for (hold, idle) in holds.into_iter().zip(1..) {
        hold.send(()).unwrap();
        assert_eq!(test.ended().await.len(), 1);
        assert_eq!(alive(&test), (idle, 3 - idle));
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    // The first worker has been idle for 60 s, the second one for 40 s.
    settle().await;
    assert_eq!(alive(&test), (2, 0));
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(alive(&test), (2, 0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(alive(&test), (1, 0));
    // The minimum stays.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(alive(&test), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_worker_above_the_minimum_is_not_replaced() {
    let mut test = TestPool::new(9, 1..=2);
    let holds = [test.hold(Spec::short("a")), test.hold(Spec::short("b"))];
    assert_eq!(test.starts().await.len(), 2);
    let worker = test.pool.snapshot().tasks[1].worker;
    assert!(!test.pool.stop_worker(worker + 1, false));
    assert!(test.pool.stop_worker(worker, false));
    for hold in holds {
        hold.send(()).unwrap();
    }
    assert_eq!(test.ended().await.len(), 2);
    assert_eq!(alive(&test), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn stopping_a_worker_after_its_task_does_not_cancel_the_task() {
    let mut test = TestPool::new(9, 1..=1);
    test.submit(Spec::long("a").deadline(Duration::from_secs(5)), Behavior::AwaitCancel).unwrap();
    assert_eq!(test.start().await, "a");
    let worker = test.pool.snapshot().tasks[0].worker;
    assert!(test.pool.stop_worker(worker, false));
    let cancelled_by = Some(Cause::Deadline);
    assert_eq!(test.ending().await, ("a".to_owned(), Ending::Finished { output: 0, cancelled_by }));
}
