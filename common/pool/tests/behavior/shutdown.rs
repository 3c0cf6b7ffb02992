//! The four shutdown modes, and a runtime that shuts down.

use std::time::Duration;

use garenne_pool::{Cause, Ending, OnEnd, Phase, Pool, PoolOptions, Report, Spec, Stop};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::test_pool::{Behavior, TestPool, TestTask, config, finished};

#[tokio::test(start_paused = true)]
async fn light_shutdown_finishes_queued_tasks() {
    let mut test = TestPool::new(4, 1..=1);
    for number in 0..4 {
        test.submit(Spec::short(number.to_string()), Behavior::Return(number)).unwrap();
    }
    test.pool.begin_shutdown(Stop::Light);
    assert_eq!(test.pool.stopped().await, Report { finished: 4, ..Report::default() });
    assert_eq!(test.ending().await.1, finished(0));
    assert_eq!(test.pool.snapshot().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn soft_shutdown_finishes_running_tasks_and_hands_back_queued_ones() {
    let mut test = TestPool::new(4, 1..=1);
    let (go, hold) = oneshot::channel();
    test.submit(Spec::short("a"), Behavior::Hold(hold, 1)).unwrap();
    assert_eq!(test.start().await, "a");
    test.submit(Spec::short("b"), Behavior::Return(2)).unwrap();
    test.pool.begin_shutdown(Stop::Soft);
    test.pool.begin_shutdown(Stop::Light);
    assert_eq!(test.pool.snapshot().phase, Phase::Soft);
    assert_eq!(test.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    go.send(()).unwrap();
    assert_eq!(test.pool.stopped().await, Report { finished: 1, not_started: 1, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn soft_shutdown_with_a_timeout_turns_hard() {
    let mut test = TestPool::new(4, 3..=3);
    let begun = Instant::now();
    let ten_minutes = Duration::from_secs(600);
    test.submit(Spec::long("obeys").deadline(ten_minutes), Behavior::AwaitCancel).unwrap();
    test.submit(Spec::long("deaf").deadline(ten_minutes), Behavior::IgnoreCancel).unwrap();
    test.submit(Spec::short("short"), Behavior::IgnoreCancel).unwrap();
    for _ in 0..3 {
        test.start().await;
    }
    let (timeout, grace) = (Duration::from_secs(25), Duration::from_secs(3));
    test.pool.begin_shutdown(Stop::SoftTimeout { timeout, grace });
    let report = test.pool.stopped().await;
    assert_eq!(report, Report { interrupted: 2, abandoned: 1, ..Report::default() });
    assert_eq!(begun.elapsed().as_secs(), 28);
    let cancelled_by = Some(Cause::Shutdown);
    assert_eq!(test.ending().await, ("obeys".to_owned(), Ending::Finished { output: 2, cancelled_by }));
}

#[tokio::test(start_paused = true)]
async fn hard_shutdown_overrides_a_soft_one() {
    let mut test = TestPool::new(4, 1..=1);
    test.submit(Spec::long("a"), Behavior::AwaitCancel).unwrap();
    test.start().await;
    test.pool.begin_shutdown(Stop::Soft);
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    assert_eq!(test.pool.stopped().await, Report { interrupted: 1, ..Report::default() });
}

#[tokio::test]
async fn every_task_ends_when_the_runtime_shuts_down() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut test = TestPool::with(config(8, 1..=1), PoolOptions::default(), tasks.handle().clone());
    test.submit(Spec::short("a"), Behavior::IgnoreCancel).unwrap();
    test.submit(Spec::short("b"), Behavior::IgnoreCancel).unwrap();
    assert_eq!(test.start().await, "a");
    tasks.shutdown_background();
    test.pool.stopped().await;
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    let not_started = Ending::NotStarted { cause: Cause::Shutdown };
    assert_eq!(test.ending().await, ("a".to_owned(), gave_up));
    assert_eq!(test.ending().await, ("b".to_owned(), not_started));
    assert_eq!(test.submit(Spec::short("c"), Behavior::IgnoreCancel).unwrap_err().to_string(), "pool closed");
}

/// A worker ends when its pools have closed. The completions settle the deliveries, so they must have run by then.
#[tokio::test]
async fn the_pool_closes_after_its_last_completion() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pool: Pool<TestTask, OnEnd<_>> = Pool::start(config(8, 1..=1), tasks.handle().clone()).unwrap();
    let (sender, mut phases) = mpsc::unbounded_channel();
    for id in ["runs", "waits"] {
        let (observed, sender) = (pool.clone(), sender.clone());
        let observe = move |_: Ending<u32>| sender.send(observed.snapshot().phase).unwrap();
        let completion = OnEnd(Box::new(observe) as Box<dyn FnOnce(Ending<u32>) + Send>);
        let task = TestTask { behavior: Behavior::IgnoreCancel, started: None };
        assert!(pool.submit_detached(Spec::short(id), task, completion).is_ok());
    }
    tasks.shutdown_background();
    pool.stopped().await;
    for _ in 0..2 {
        assert_ne!(phases.recv().await, Some(Phase::Closed));
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_reference_shuts_the_pool_down_softly() {
    let mut test = TestPool::new(4, 1..=1);
    let go = test.hold(Spec::short("a"));
    assert_eq!(test.start().await, "a");
    test.submit(Spec::short("b"), Behavior::Return(2)).unwrap();
    let other = TestPool::new(1, 1..=1).pool;
    drop(std::mem::replace(&mut test.pool, other));
    assert_eq!(test.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    go.send(()).unwrap();
    assert_eq!(test.ending().await, ("a".to_owned(), finished(0)));
}

#[tokio::test(start_paused = true)]
async fn cancelling_the_parent_token_stops_the_pool() {
    let test = TestPool::new(4, 1..=1);
    let parent = CancellationToken::new();
    test.pool.stop_with(parent.clone(), Stop::Hard { grace: Duration::from_secs(1) });
    test.submit(Spec::long("a"), Behavior::AwaitCancel).unwrap();
    parent.cancel();
    let report = test.pool.stopped().await;
    assert_eq!(report.interrupted + report.not_started, 1);
    assert_eq!(test.pool.snapshot().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_of_a_closed_pool_shows_no_workers_and_no_tasks() {
    let test = TestPool::new(4, 1..=2);
    let handle = test.submit(Spec::short("a"), Behavior::Return(1)).unwrap();
    handle.wait().await;
    test.pool.begin_shutdown(Stop::Light);
    test.pool.stopped().await;
    let view = serde_json::to_value(test.pool.snapshot()).unwrap();
    let workers =
        serde_json::json!({"idle": 0, "busy": 0, "restarting": 0, "min": 1, "max": 2, "restarts": 0});
    assert_eq!(view["workers"], workers);
    assert_eq!(view["phase"], "closed");
    assert_eq!(view["totals"]["finished"], 1);
    assert_eq!(view["tasks"], serde_json::json!([]));
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_soft_timeouts_applies() {
    let seconds = Duration::from_secs;
    for timeouts in [[10, 20], [20, 10]] {
        let mut test = TestPool::new(4, 1..=1);
        test.submit(Spec::long("a").deadline(seconds(600)), Behavior::AwaitCancel).unwrap();
        test.start().await;
        let begun = Instant::now();
        for timeout in timeouts {
            test.pool.begin_shutdown(Stop::SoftTimeout { timeout: seconds(timeout), grace: seconds(1) });
        }
        test.pool.stopped().await;
        assert_eq!(begun.elapsed().as_secs(), 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_soft_timeout_does_not_soften_a_hard_shutdown() {
    let mut test = TestPool::new(4, 1..=1);
    test.submit(Spec::long("a"), Behavior::IgnoreCancel).unwrap();
    test.start().await;
    let begun = Instant::now();
    let grace = Duration::from_secs(5);
    test.pool.begin_shutdown(Stop::Hard { grace });
    test.pool.begin_shutdown(Stop::SoftTimeout { timeout: Duration::from_secs(1), grace: Duration::ZERO });
    assert_eq!(test.pool.snapshot().phase, Phase::Hard);
    assert_eq!(test.pool.stopped().await.interrupted, 1);
    assert_eq!(begun.elapsed().as_secs(), 5);
    // A closed pool stays closed.
    test.pool.begin_shutdown(Stop::Hard { grace });
    assert_eq!(test.pool.snapshot().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_second_hard_shutdown_shortens_the_grace_period_and_never_lengthens_it() {
    let seconds = Duration::from_secs;
    for graces in [[10, 3], [3, 10]] {
        let mut test = TestPool::new(4, 2..=2);
        test.submit(Spec::long("long"), Behavior::IgnoreCancel).unwrap();
        test.submit(Spec::short("short"), Behavior::IgnoreCancel).unwrap();
        assert_eq!(test.starts().await.len(), 2);
        let begun = Instant::now();
        for grace in graces {
            test.pool.begin_shutdown(Stop::Hard { grace: seconds(grace) });
        }
        let report = test.pool.stopped().await;
        assert_eq!((report.interrupted, report.abandoned), (1, 1));
        assert_eq!(begun.elapsed().as_secs(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_pool_closes_at_once_and_its_parent_token_has_no_effect() {
    let test = TestPool::new(4, 2..=2);
    let parent = CancellationToken::new();
    test.pool.stop_with(parent.clone(), Stop::Hard { grace: Duration::ZERO });
    let begun = Instant::now();
    test.pool.begin_shutdown(Stop::Light);
    assert_eq!(test.pool.stopped().await, Report::default());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    parent.cancel();
    assert_eq!(test.pool.snapshot().phase, Phase::Closed);
}
