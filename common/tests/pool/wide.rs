//! Tasks that ask for several workers.

use std::{sync::Arc, time::Duration};

use garenne_common::pool::{Cause, Ending, Report, Spec, Stop};
use tokio::sync::Notify;

use crate::bench::{Act, Bench, finished};

fn shards(panics: Option<u32>) -> (Arc<Notify>, Act) {
    let go = Arc::new(Notify::new());
    (Arc::clone(&go), Act::Shards { go, panics })
}

#[tokio::test(start_paused = true)]
async fn it_starts_with_the_idle_workers_and_is_joined_by_others() {
    let mut bench = Bench::new(4, 3..=3);
    let busy = bench.hold(Spec::short("busy"));
    let (go, act) = shards(None);
    let handle = bench.submit(Spec::short("wide").width(3), act).unwrap();
    assert_eq!(bench.starts().await, ["busy", "wide 0/3", "wide 1/3"]);
    go.notify_waiters();
    assert!(bench.ended().await.is_empty());
    busy.send(()).unwrap();
    assert_eq!(bench.starts().await, ["wide 2/3"]);
    go.notify_waiters();
    handle.wait().await;
    // Once, with what its shards yielded joined: 1 + 2 + 4.
    let ended = bench.ended().await;
    assert_eq!(ended, [("busy".to_owned(), finished(0)), ("wide".to_owned(), finished(7))]);
}

#[tokio::test(start_paused = true)]
async fn wide_and_small_tasks_take_turns() {
    let mut bench = Bench::new(10, 2..=2);
    let holds = [bench.hold(Spec::short("hold 1")), bench.hold(Spec::short("hold 2"))];
    let (go, act) = shards(None);
    bench.submit(Spec::short("wide").width(2), act).unwrap();
    let small = [bench.hold(Spec::short("small 1")), bench.hold(Spec::short("small 2"))];
    let [first, second] = holds;
    bench.starts().await;
    first.send(()).unwrap();
    assert_eq!(bench.starts().await, ["wide 0/2"]);
    second.send(()).unwrap();
    // Next in the queue, or the second shard: one of each, neither waits for all of the other.
    assert_eq!(bench.starts().await, ["wide 1/2"]);
    go.notify_waiters();
    assert_eq!(bench.starts().await, ["small 1", "small 2"]);
    drop(small);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_panics_fails_the_task_once_and_stops_its_siblings() {
    let mut bench = Bench::new(4, 2..=2);
    let (_go, act) = shards(Some(1));
    bench.submit(Spec::long("wide").width(2), act).unwrap();
    assert_eq!(
        bench.ending().await,
        ("wide".to_owned(), Ending::Panicked { message: "as asked".to_owned() })
    );
    assert!(bench.ended().await.is_empty());
    assert_eq!(bench.undone.try_recv().unwrap().0, "wide".into());
    assert!(bench.undone.try_recv().is_err());
    assert_eq!(bench.pool.snapshot().running, 0);
}

#[tokio::test(start_paused = true)]
async fn it_is_stopped_as_one() {
    let mut bench = Bench::new(4, 2..=2);
    let (_go, act) = shards(None);
    bench.submit(Spec::long("wide").width(2), act).unwrap();
    assert_eq!(bench.starts().await.len(), 2);
    let (_go, act) = shards(None);
    bench.submit(Spec::long("waits").width(2), act).unwrap();
    assert!(bench.pool.stop(&"waits".into()));
    assert_eq!(bench.ending().await, ("waits".to_owned(), Ending::NotStarted { cause: Cause::Stopped }));
    assert!(bench.pool.stop(&"wide".into()));
    let told = Some(Cause::Stopped);
    assert_eq!(bench.ending().await, ("wide".to_owned(), Ending::Finished { output: 202, told }));
}

#[tokio::test(start_paused = true)]
async fn soft_lets_the_shards_of_a_started_task_start() {
    let mut bench = Bench::new(4, 2..=2);
    let busy = bench.hold(Spec::short("busy"));
    let (go, act) = shards(None);
    bench.submit(Spec::short("wide").width(2), act).unwrap();
    assert_eq!(bench.starts().await, ["busy", "wide 0/2"]);
    bench.pool.begin_shutdown(Stop::Soft);
    busy.send(()).unwrap();
    assert_eq!(bench.starts().await, ["wide 1/2"]);
    go.notify_waiters();
    assert_eq!(bench.pool.stopped().await, Report { finished: 2, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn hard_ends_a_task_whose_shards_had_not_all_started() {
    let mut bench = Bench::new(4, 2..=2);
    let _busy = bench.hold(Spec::short("busy"));
    let (_go, act) = shards(None);
    bench.submit(Spec::long("wide").width(2), act).unwrap();
    assert_eq!(bench.starts().await, ["busy", "wide 0/2"]);
    bench.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    assert_eq!(bench.ending().await, ("wide".to_owned(), gave_up));
    assert_eq!(bench.pool.stopped().await, Report { interrupted: 1, abandoned: 1, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn a_groups_cap_counts_shards() {
    let mut bench = Bench::new(4, 3..=3);
    bench.pool.group("g").cap(Some(2));
    let (go, act) = shards(None);
    bench.submit(Spec::short("wide").width(3).group("g"), act).unwrap();
    assert_eq!(bench.starts().await, ["wide 0/3", "wide 1/3"]);
    go.notify_one();
    assert_eq!(bench.starts().await, ["wide 2/3"]);
    go.notify_waiters();
    bench.pool.group("g").wait().await;
    assert_eq!(bench.ended().await, [("wide".to_owned(), finished(7))]);
}

#[tokio::test(start_paused = true)]
async fn soft_ends_a_task_whose_group_may_not_start_the_rest() {
    let mut bench = Bench::new(4, 2..=2);
    let busy = bench.hold(Spec::short("busy"));
    let (go, act) = shards(None);
    bench.submit(Spec::short("wide").width(2).group("g"), act).unwrap();
    assert_eq!(bench.starts().await, ["busy", "wide 0/2"]);
    bench.pool.group("g").pause();
    bench.pool.begin_shutdown(Stop::Soft);
    go.notify_waiters();
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    assert_eq!(bench.ending().await, ("wide".to_owned(), gave_up));
    busy.send(()).unwrap();
    bench.pool.stopped().await;
}
