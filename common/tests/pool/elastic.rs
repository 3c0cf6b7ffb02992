//! Growing when work waits, shrinking when it does not, and orders to single workers.

use std::time::Duration;

use garenne_common::pool::{Cause, Ending, PoolOptions, Spec};
use tokio::runtime;

use crate::bench::{Act, Bench, config, finished};

fn alive(bench: &Bench) -> (usize, usize) {
    let workers = bench.pool.snapshot().workers;
    (workers.idle, workers.busy)
}

/// The pool this one learned from handed the task that made it grow to nobody.
#[tokio::test(start_paused = true)]
async fn the_task_that_makes_the_pool_grow_is_run() {
    let mut bench = Bench::new(9, 1..=3);
    let mut holds = Vec::new();
    for (number, workers) in [("1", 1), ("2", 2), ("3", 3), ("4", 3)] {
        holds.push(bench.hold(Spec::short(number)));
        let expected: &[&str] = if number == "4" { &[] } else { &[number] };
        assert_eq!(bench.starts().await, expected);
        assert_eq!(alive(&bench), (0, workers));
    }
    for hold in holds {
        hold.send(()).unwrap();
    }
    let ended = bench.ended().await;
    assert_eq!(ended.len(), 4);
    assert!(ended.iter().all(|(_, ending)| *ending == finished(0)));
}

#[tokio::test(start_paused = true)]
async fn workers_over_the_minimum_leave_after_the_idle_timeout_and_come_back() {
    let mut bench = Bench::new(9, 1..=4);
    for _ in 0..2 {
        let holds: Vec<_> = (0..4).map(|number: u32| bench.hold(Spec::short(number.to_string()))).collect();
        assert_eq!(bench.starts().await.len(), 4);
        for hold in holds {
            hold.send(()).unwrap();
        }
        assert_eq!(bench.ended().await.len(), 4);
        assert_eq!(alive(&bench), (4, 0));
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(alive(&bench), (4, 0));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(alive(&bench), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_in_use_does_not_time_out() {
    let mut bench = Bench::new(9, 1..=2);
    let first = bench.hold(Spec::short("a"));
    let second = bench.hold(Spec::short("b"));
    assert_eq!(bench.starts().await.len(), 2);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(alive(&bench), (0, 2));
    first.send(()).unwrap();
    second.send(()).unwrap();
    assert_eq!(bench.ended().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_worker_can_be_stopped_after_its_task_or_at_once() {
    let mut bench = Bench::new(9, 1..=1);
    let go = bench.hold(Spec::short("short"));
    assert_eq!(bench.start().await, "short");
    let worker = bench.pool.snapshot().tasks[0].worker;
    assert!(bench.pool.stop_worker(worker, true));
    bench.submit(Spec::long("long"), Act::Obey).unwrap();
    assert!(bench.starts().await.is_empty());
    go.send(()).unwrap();
    assert_eq!(bench.ending().await, ("short".to_owned(), finished(0)));
    // Another has taken its place.
    assert_eq!(bench.start().await, "long");
    let next = bench.pool.snapshot().tasks[0].worker;
    assert_ne!(worker, next);
    assert!(!bench.pool.stop_worker(worker, true));
    assert!(bench.pool.stop_worker(next, true));
    let told = Some(Cause::Stopped);
    assert_eq!(bench.ending().await, ("long".to_owned(), Ending::Finished { output: 1, told }));
    bench.starts().await;
    assert_eq!(alive(&bench), (1, 0));
    let idle = next + 1;
    assert!(bench.pool.stop_worker(idle, false));
    bench.starts().await;
    assert_eq!(alive(&bench), (1, 0));
}

/// More workers than threads are of no use to tasks that keep them busy; the pool must still find out
/// when they merely block.
#[tokio::test]
async fn blocked_threads_do_not_keep_the_pool_from_growing() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut bench = Bench::with(config(9, 1..=2), PoolOptions::default(), tasks.handle().clone());
    // Gives its runtime thread away while it blocks, which the pool cannot see.
    let (go, block) = std::sync::mpsc::channel();
    bench.submit(Spec::short("blocks"), Act::BlockInPlace(block)).unwrap();
    assert_eq!(bench.start().await, "blocks");
    bench.submit(Spec::short("next"), Act::Return(1)).unwrap();
    assert_eq!(bench.ending().await, ("next".to_owned(), finished(1)));
    go.send(()).unwrap();
    assert_eq!(bench.ending().await, ("blocks".to_owned(), finished(7)));
    tasks.shutdown_background();
}
