//! Groups: caps, pauses, stops, and waiting together.

use std::time::Duration;

use garenne_common::pool::{Cause, Ending, Outcome, Refusal, Report, Spec, Stop};

use crate::bench::{Act, Bench, finished, settle};

#[tokio::test(start_paused = true)]
async fn a_cap_bounds_its_group_and_holds_up_nobody_else() {
    let mut bench = Bench::new(10, 3..=3);
    bench.pool.group("slow").cap(Some(1));
    let first = bench.hold(Spec::short("slow 1").group("slow"));
    let second = bench.hold(Spec::short("slow 2").group("slow"));
    let _other = bench.hold(Spec::short("other").group("quick"));
    bench.submit(Spec::short("none"), Act::Return(1)).unwrap();
    assert_eq!(bench.starts().await, ["none", "other", "slow 1"]);
    first.send(()).unwrap();
    assert_eq!(bench.starts().await, ["slow 2"]);
    let third = bench.hold(Spec::short("slow 3").group("slow"));
    bench.pool.group("slow").cap(None);
    assert_eq!(bench.starts().await, ["slow 3"]);
    second.send(()).unwrap();
    third.send(()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_waited_for_its_group_comes_before_what_came_later() {
    let mut bench = Bench::new(10, 1..=1);
    let first = bench.hold(Spec::short("hold"));
    bench.pool.group("g").pause();
    bench.submit(Spec::short("paused").group("g"), Act::Return(1)).unwrap();
    bench.submit(Spec::short("later"), Act::Return(2)).unwrap();
    bench.pool.group("g").resume();
    first.send(()).unwrap();
    settle().await;
    let order: Vec<String> = bench.ended().await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, ["hold", "paused", "later"]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_group_starts_nothing_until_it_is_resumed() {
    let mut bench = Bench::new(10, 2..=2);
    bench.pool.group("g").pause();
    bench.submit(Spec::short("a").group("g"), Act::Return(1)).unwrap();
    bench.submit(Spec::short("b").group("g"), Act::Return(2)).unwrap();
    assert!(bench.starts().await.is_empty());
    let view = bench.pool.snapshot();
    assert_eq!((view.queued, view.groups[0].paused, view.groups[0].queued), (2, true, 2));
    bench.pool.group("g").resume();
    bench.pool.group("g").wait().await;
    assert_eq!(bench.ended().await.len(), 2);
    // A group without tasks and without rules takes no memory.
    assert!(bench.pool.snapshot().groups.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopping_a_group_ends_what_waits_and_tells_what_runs() {
    let mut bench = Bench::new(10, 1..=1);
    bench.submit(Spec::long("runs").group("g"), Act::Obey).unwrap();
    bench.submit(Spec::short("waits").group("g"), Act::Return(1)).unwrap();
    bench.submit(Spec::short("other"), Act::Return(2)).unwrap();
    assert_eq!(bench.start().await, "runs");
    assert_eq!(bench.pool.group("g").stop(), 2);
    bench.pool.group("g").wait().await;
    let mut endings = bench.ended().await;
    endings.sort_by(|a, b| a.0.cmp(&b.0));
    let told = Some(Cause::Stopped);
    let expected = [
        ("other".to_owned(), finished(2)),
        ("runs".to_owned(), Ending::Finished { output: 1, told }),
        ("waits".to_owned(), Ending::NotStarted { cause: Cause::Stopped }),
    ];
    assert_eq!(endings, expected);
}

#[tokio::test(start_paused = true)]
async fn nobody_who_waits_for_a_group_hangs_when_the_pool_stops() {
    for stop in [Stop::Light, Stop::Soft, Stop::Hard { grace: Duration::from_secs(1) }] {
        let bench = Bench::new(10, 1..=1);
        bench.pool.group("paused").pause();
        bench.pool.group("capped").cap(Some(0));
        for group in ["paused", "capped", "free"] {
            bench.submit(Spec::short(group).group(group), Act::Return(1)).unwrap();
        }
        bench.pool.begin_shutdown(stop);
        for group in ["paused", "capped", "free"] {
            bench.pool.group(group).wait().await;
        }
        bench.pool.stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_during_a_shutdown_hands_back_what_waits() {
    let mut bench = Bench::new(10, 1..=1);
    let go = bench.hold(Spec::short("a"));
    assert_eq!(bench.start().await, "a");
    bench.submit(Spec::short("b").group("g"), Act::Return(1)).unwrap();
    bench.pool.begin_shutdown(Stop::Light);
    bench.pool.group("g").pause();
    assert_eq!(bench.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    go.send(()).unwrap();
    assert_eq!(bench.pool.stopped().await, Report { finished: 1, not_started: 1, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn tasks_submitted_together_are_admitted_together_or_not_at_all() {
    let mut bench = Bench::new(2, 1..=1);
    let parts = |bench: &Bench, id: &str, act| {
        let (job, end) = bench.parts(&id.into(), act);
        (Spec::short(id), job, end)
    };
    let three = ["a", "b", "c"].map(|id| parts(&bench, id, Act::Return(1))).into_iter().collect();
    let refused = bench.pool.submit_together(three).unwrap_err();
    assert_eq!(refused.reason, Refusal::QueueFull { limit: 2 });
    assert_eq!(refused.task.len(), 3);
    assert!(bench.starts().await.is_empty());
    let two = refused.task.into_iter().take(2).collect();
    let batch = bench.pool.submit_together(two).unwrap();
    assert_eq!(batch.all().await, [Outcome::Finished { told: None }, Outcome::Finished { told: None }]);
    assert_eq!(batch.first_error().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_first_error_is_the_first_in_time() {
    let bench = Bench::new(4, 3..=3);
    let part = |spec: Spec, act| {
        let (job, end) = bench.parts(&spec.id, act);
        (spec, job, end)
    };
    let tasks = vec![
        part(Spec::long("late").deadline(Duration::from_secs(9)), Act::Obey),
        part(Spec::long("early").deadline(Duration::from_secs(5)), Act::Obey),
        part(Spec::short("fine"), Act::Return(1)),
    ];
    let batch = bench.pool.submit_together(tasks).unwrap();
    let failed = Outcome::Finished { told: Some(Cause::Deadline) };
    assert_eq!(batch.first_error().await, Err(("early".into(), failed)));
    assert_eq!(batch.stop(), 1);
    let outcomes = batch.all().await;
    assert_eq!(outcomes[0], Outcome::Finished { told: Some(Cause::Stopped) });
}
