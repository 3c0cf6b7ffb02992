//! The four shutdowns, and a runtime that goes away.

use std::time::Duration;

use garenne_common::pool::{Cause, Ending, Phase, PoolOptions, Report, Spec, Stop};
use tokio::{runtime, sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::bench::{Act, Bench, config, finished};

#[tokio::test(start_paused = true)]
async fn light_finishes_what_waits() {
    let mut bench = Bench::new(4, 1..=1);
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
    let mut bench = Bench::new(4, 1..=1);
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
    let mut bench = Bench::new(4, 3..=3);
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
    let mut bench = Bench::new(4, 1..=1);
    bench.submit(Spec::long("a"), Act::Obey).unwrap();
    bench.start().await;
    bench.pool.begin_shutdown(Stop::Soft);
    bench.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    assert_eq!(bench.pool.stopped().await, Report { interrupted: 1, ..Report::default() });
}

#[tokio::test]
async fn a_runtime_that_goes_away_ends_every_task() {
    let tasks = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut bench = Bench::with(config(8, 1..=1), PoolOptions::default(), tasks.handle().clone());
    bench.submit(Spec::short("a"), Act::Deaf).unwrap();
    bench.submit(Spec::short("b"), Act::Deaf).unwrap();
    assert_eq!(bench.start().await, "a");
    tasks.shutdown_background();
    bench.pool.stopped().await;
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    let not_started = Ending::NotStarted { cause: Cause::Shutdown };
    assert_eq!(bench.ending().await, ("a".to_owned(), gave_up));
    assert_eq!(bench.ending().await, ("b".to_owned(), not_started));
    assert_eq!(bench.submit(Spec::short("c"), Act::Deaf).unwrap_err().to_string(), "pool closed");
}

#[tokio::test(start_paused = true)]
async fn a_pool_nobody_holds_any_more_shuts_down_softly() {
    let mut bench = Bench::new(4, 1..=1);
    let go = bench.hold(Spec::short("a"));
    assert_eq!(bench.start().await, "a");
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    let other = Bench::new(1, 1..=1).pool;
    drop(std::mem::replace(&mut bench.pool, other));
    assert_eq!(bench.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    go.send(()).unwrap();
    assert_eq!(bench.ending().await, ("a".to_owned(), finished(0)));
}

#[tokio::test(start_paused = true)]
async fn the_parents_cancellation_stops_the_pool() {
    let bench = Bench::new(4, 1..=1);
    let parent = CancellationToken::new();
    bench.pool.stop_with(parent.clone(), Stop::Hard { grace: Duration::from_secs(1) });
    bench.submit(Spec::long("a"), Act::Obey).unwrap();
    parent.cancel();
    let report = bench.pool.stopped().await;
    assert_eq!(report.interrupted + report.not_started, 1);
    assert_eq!(bench.pool.snapshot().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_pool_holds_nothing_of_its_tasks() {
    let bench = Bench::new(4, 1..=2);
    let handle = bench.submit(Spec::short("a"), Act::Return(1)).unwrap();
    handle.wait().await;
    bench.pool.begin_shutdown(Stop::Light);
    bench.pool.stopped().await;
    let view = serde_json::to_value(bench.pool.snapshot()).unwrap();
    let workers =
        serde_json::json!({"idle": 0, "busy": 0, "restarting": 0, "min": 1, "max": 2, "restarts": 0});
    assert_eq!(view["workers"], workers);
    assert_eq!(view["phase"], "closed");
    assert_eq!(view["totals"]["finished"], 1);
    assert_eq!(view["tasks"], serde_json::json!([]));
}
