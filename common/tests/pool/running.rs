//! Deadlines, graces and stops.

use std::time::Duration;

use garenne_common::pool::{Cause, Ending, Outcome, Spec, Status};
use tokio::{sync::oneshot, time::Instant};

use crate::bench::{Act, Bench};

#[tokio::test(start_paused = true)]
async fn a_long_task_is_told_at_its_deadline_and_given_up_after_the_grace() {
    let mut bench = Bench::new(4, 2..=2);
    let begun = Instant::now();
    bench.submit(Spec::long("obeys").deadline(Duration::from_secs(5)), Act::Obey).unwrap();
    let deaf = bench.submit(Spec::long("deaf"), Act::Deaf).unwrap();
    let told = Some(Cause::Deadline);
    assert_eq!(bench.ending().await, ("obeys".to_owned(), Ending::Finished { output: 0, told }));
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert_eq!(deaf.status(), Status::Running);
    let gave_up = Ending::GaveUp { cause: Cause::Deadline, stuck: false };
    assert_eq!(bench.ending().await, ("deaf".to_owned(), gave_up));
    assert_eq!(begun.elapsed().as_secs(), 32);
    assert_eq!(deaf.error(), Some(Outcome::GaveUp { cause: Cause::Deadline, stuck: false }));
}

#[tokio::test(start_paused = true)]
async fn a_short_task_has_no_deadline_and_cannot_be_stopped_once_it_runs() {
    let mut bench = Bench::new(4, 1..=1);
    let (go, hold) = oneshot::channel();
    let handle = bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    assert_eq!(bench.start().await, "a");
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(!handle.stop());
    assert_eq!(handle.status(), Status::Running);
    go.send(()).unwrap();
    assert_eq!(handle.wait().await, Outcome::Finished { told: None });
    assert_eq!(handle.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_task_that_is_stopped_never_starts() {
    let mut bench = Bench::new(4, 1..=1);
    let (go, hold) = oneshot::channel();
    bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    assert!(bench.pool.stop(&"b".into()));
    assert!(!bench.pool.stop(&"b".into()));
    assert_eq!(bench.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Stopped }));
    go.send(()).unwrap();
    assert_eq!(bench.ending().await.0, "a");
}

#[tokio::test(start_paused = true)]
async fn what_a_handle_stops_is_told_why() {
    let mut bench = Bench::new(4, 1..=1);
    let handle = bench.submit(Spec::long("a"), Act::Obey).unwrap();
    let other = bench.submit(Spec::long("a"), Act::Obey).unwrap();
    assert_eq!(bench.start().await, "a");
    assert!(handle.stop());
    let told = Some(Cause::Stopped);
    assert_eq!(handle.wait().await, Outcome::Finished { told });
    assert_eq!(bench.ending().await, ("a".to_owned(), Ending::Finished { output: 1, told }));
    // Same id, another task.
    assert_eq!(bench.start().await, "a");
    assert_eq!(other.status(), Status::Running);
    assert!(!handle.stop());
}
