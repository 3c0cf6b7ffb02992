//! Deadlines, grace periods and stops.

use std::time::Duration;

use garenne_pool::{Cause, Ending, Outcome, Spec, Status};
use tokio::{sync::oneshot, time::Instant};

use crate::test_pool::{Behavior, TestPool};

#[tokio::test(start_paused = true)]
async fn a_long_task_is_cancelled_at_its_deadline_and_given_up_after_the_grace_period() {
    let mut test = TestPool::new(4, 2..=2);
    let begun = Instant::now();
    test.submit(Spec::long("obeys").deadline(Duration::from_secs(5)), Behavior::AwaitCancel).unwrap();
    let deaf = test.submit(Spec::long("deaf"), Behavior::IgnoreCancel).unwrap();
    let cancelled_by = Some(Cause::Deadline);
    assert_eq!(test.ending().await, ("obeys".to_owned(), Ending::Finished { output: 0, cancelled_by }));
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert_eq!(deaf.status(), Status::Running);
    let gave_up = Ending::GaveUp { cause: Cause::Deadline, stuck: false };
    assert_eq!(test.ending().await, ("deaf".to_owned(), gave_up));
    assert_eq!(begun.elapsed().as_secs(), 32);
    assert_eq!(deaf.error(), Some(Outcome::GaveUp { cause: Cause::Deadline, stuck: false }));
}

#[tokio::test(start_paused = true)]
async fn a_running_short_task_has_no_deadline_and_cannot_be_stopped() {
    let mut test = TestPool::new(4, 1..=1);
    let (go, hold) = oneshot::channel();
    let handle = test.submit(Spec::short("a"), Behavior::Hold(hold, 1)).unwrap();
    assert_eq!(test.start().await, "a");
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(!handle.stop());
    assert_eq!(handle.status(), Status::Running);
    go.send(()).unwrap();
    assert_eq!(handle.wait().await, Outcome::Finished { cancelled_by: None });
    assert_eq!(handle.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_queued_task_that_is_stopped_never_starts() {
    let mut test = TestPool::new(4, 1..=1);
    let (go, hold) = oneshot::channel();
    test.submit(Spec::short("a"), Behavior::Hold(hold, 1)).unwrap();
    test.submit(Spec::short("b"), Behavior::Return(2)).unwrap();
    assert!(test.pool.stop(&"b".into()));
    assert!(!test.pool.stop(&"b".into()));
    assert_eq!(test.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Stopped }));
    go.send(()).unwrap();
    assert_eq!(test.ending().await.0, "a");
}

#[tokio::test(start_paused = true)]
async fn a_handle_stops_its_own_task_only() {
    let mut test = TestPool::new(4, 1..=1);
    let handle = test.submit(Spec::long("a"), Behavior::AwaitCancel).unwrap();
    let other = test.submit(Spec::long("a"), Behavior::AwaitCancel).unwrap();
    assert_eq!(test.start().await, "a");
    assert!(handle.stop());
    let cancelled_by = Some(Cause::Stopped);
    assert_eq!(handle.wait().await, Outcome::Finished { cancelled_by });
    assert_eq!(test.ending().await, ("a".to_owned(), Ending::Finished { output: 1, cancelled_by }));
    // The other task with the same id still runs.
    assert_eq!(test.start().await, "a");
    assert_eq!(other.status(), Status::Running);
    assert!(!handle.stop());
}

#[tokio::test(start_paused = true)]
async fn each_of_several_deadlines_is_met() {
    let mut test = TestPool::new(9, 4..=4);
    let begun = Instant::now();
    for seconds in [7, 3, 5, 1] {
        let spec = Spec::long(seconds.to_string()).deadline(Duration::from_secs(seconds));
        test.submit(spec, Behavior::AwaitCancel).unwrap();
    }
    for seconds in [1, 3, 5, 7] {
        assert_eq!(test.ending().await.0, seconds.to_string());
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_task_is_given_up_after_the_grace_period_and_its_deadline_changes_nothing() {
    let mut test = TestPool::new(9, 1..=1);
    let begun = Instant::now();
    let spec = Spec::long("a").deadline(Duration::from_secs(3));
    let handle = test.submit(spec, Behavior::IgnoreCancel).unwrap();
    assert_eq!(test.start().await, "a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(test.pool.stop(&"a".into()));
    assert!(!handle.stop());
    let gave_up = Ending::GaveUp { cause: Cause::Stopped, stuck: false };
    assert_eq!(test.ending().await, ("a".to_owned(), gave_up));
    assert_eq!(begun.elapsed().as_secs(), 4);
    // The worker is free for the next task.
    test.submit(Spec::short("b"), Behavior::Return(1)).unwrap();
    assert_eq!(test.ending().await.0, "b");
    assert_eq!(test.pool.snapshot().stuck, 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_an_id_stops_all_tasks_with_it_and_no_others() {
    let mut test = TestPool::new(9, 2..=2);
    test.submit(Spec::long("same"), Behavior::AwaitCancel).unwrap();
    test.submit(Spec::long("other"), Behavior::AwaitCancel).unwrap();
    test.submit(Spec::short("same"), Behavior::Return(1)).unwrap();
    assert_eq!(test.starts().await, ["other", "same"]);
    assert!(!test.pool.stop(&"unknown".into()));
    assert!(test.pool.stop(&"same".into()));
    let mut ended = test.ended().await;
    ended.sort_by_key(|(_, ending)| matches!(ending, Ending::NotStarted { .. }));
    let cancelled_by = Some(Cause::Stopped);
    let expected = [
        ("same".to_owned(), Ending::Finished { output: 1, cancelled_by }),
        ("same".to_owned(), Ending::NotStarted { cause: Cause::Stopped }),
    ];
    assert_eq!(ended, expected);
    assert_eq!(test.pool.snapshot().tasks[0].id, "other".into());
}
