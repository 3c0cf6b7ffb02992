//! Groups: caps, pauses, stops, and waiting for all tasks of a group.

use std::time::Duration;

use garenne_pool::{Cause, Ending, Outcome, Refusal, Report, Spec, Stop};

use crate::test_pool::{Behavior, TestPool, finished, settle};

#[tokio::test(start_paused = true)]
async fn a_cap_limits_its_group_and_delays_no_other_task() {
    let mut test = TestPool::new(10, 3..=3);
    test.pool.group("slow").cap(Some(1));
    let first = test.hold(Spec::short("slow 1").group("slow"));
    let second = test.hold(Spec::short("slow 2").group("slow"));
    let _other = test.hold(Spec::short("other").group("quick"));
    test.submit(Spec::short("none"), Behavior::Return(1)).unwrap();
    assert_eq!(test.starts().await, ["none", "other", "slow 1"]);
    first.send(()).unwrap();
    assert_eq!(test.starts().await, ["slow 2"]);
    let third = test.hold(Spec::short("slow 3").group("slow"));
    test.pool.group("slow").cap(None);
    assert_eq!(test.starts().await, ["slow 3"]);
    second.send(()).unwrap();
    third.send(()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_resumed_group_start_before_later_tasks() {
    let mut test = TestPool::new(10, 1..=1);
    let first = test.hold(Spec::short("hold"));
    test.pool.group("g").pause();
    test.submit(Spec::short("paused").group("g"), Behavior::Return(1)).unwrap();
    test.submit(Spec::short("later"), Behavior::Return(2)).unwrap();
    test.pool.group("g").resume();
    first.send(()).unwrap();
    settle().await;
    let order: Vec<String> = test.ended().await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, ["hold", "paused", "later"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_submitted_before_a_pause_starts_before_those_that_came_during_it() {
    let mut test = TestPool::new(10, 1..=1);
    let first = test.hold(Spec::short("hold"));
    test.submit(Spec::short("before").group("g"), Behavior::Return(1)).unwrap();
    test.pool.group("g").pause();
    test.submit(Spec::short("during").group("g"), Behavior::Return(2)).unwrap();
    first.send(()).unwrap();
    settle().await;
    test.pool.group("g").resume();
    let order: Vec<String> = test.ended().await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, ["hold", "before", "during"]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_group_starts_no_task_until_it_is_resumed() {
    let mut test = TestPool::new(10, 2..=2);
    test.pool.group("g").pause();
    test.submit(Spec::short("a").group("g"), Behavior::Return(1)).unwrap();
    test.submit(Spec::short("b").group("g"), Behavior::Return(2)).unwrap();
    assert!(test.starts().await.is_empty());
    let view = test.pool.snapshot();
    assert_eq!((view.queued, view.groups[0].paused, view.groups[0].queued), (2, true, 2));
    test.pool.group("g").resume();
    test.pool.group("g").wait().await;
    assert_eq!(test.ended().await.len(), 2);
    // The state of a group without tasks and without settings is removed.
    assert!(test.pool.snapshot().groups.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopping_a_group_ends_queued_tasks_and_cancels_running_ones() {
    let mut test = TestPool::new(10, 1..=1);
    test.submit(Spec::long("runs").group("g"), Behavior::AwaitCancel).unwrap();
    test.submit(Spec::short("waits").group("g"), Behavior::Return(1)).unwrap();
    test.submit(Spec::short("other"), Behavior::Return(2)).unwrap();
    assert_eq!(test.start().await, "runs");
    assert_eq!(test.pool.group("g").stop(), 2);
    test.pool.group("g").wait().await;
    let mut endings = test.ended().await;
    endings.sort_by(|a, b| a.0.cmp(&b.0));
    let cancelled_by = Some(Cause::Stopped);
    let expected = [
        ("other".to_owned(), finished(2)),
        ("runs".to_owned(), Ending::Finished { output: 1, cancelled_by }),
        ("waits".to_owned(), Ending::NotStarted { cause: Cause::Stopped }),
    ];
    assert_eq!(endings, expected);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_group_ends_when_the_pool_shuts_down() {
    for stop in [Stop::Light, Stop::Soft, Stop::Hard { grace: Duration::from_secs(1) }] {
        let test = TestPool::new(10, 1..=1);
        test.pool.group("paused").pause();
        test.pool.group("capped").cap(Some(0));
        for group in ["paused", "capped", "free"] {
            test.submit(Spec::short(group).group(group), Behavior::Return(1)).unwrap();
        }
        test.pool.begin_shutdown(stop);
        for group in ["paused", "capped", "free"] {
            test.pool.group(group).wait().await;
        }
        test.pool.stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_during_a_shutdown_hands_back_queued_tasks() {
    let mut test = TestPool::new(10, 1..=1);
    let go = test.hold(Spec::short("a"));
    assert_eq!(test.start().await, "a");
    test.submit(Spec::short("b").group("g"), Behavior::Return(1)).unwrap();
    test.pool.begin_shutdown(Stop::Light);
    test.pool.group("g").pause();
    assert_eq!(test.ending().await, ("b".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    go.send(()).unwrap();
    assert_eq!(test.pool.stopped().await, Report { finished: 1, not_started: 1, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn submit_together_admits_all_tasks_or_none() {
    let mut test = TestPool::new(2, 1..=1);
    let parts = |test: &TestPool, id: &str, behavior| {
        let (job, end) = test.parts(&id.into(), behavior);
        (Spec::short(id), job, end)
    };
    let three = ["a", "b", "c"].map(|id| parts(&test, id, Behavior::Return(1))).into_iter().collect();
    let refused = test.pool.submit_together(three).unwrap_err();
    assert_eq!(refused.reason, Refusal::QueueFull { limit: 2 });
    assert_eq!(refused.task.len(), 3);
    assert!(test.starts().await.is_empty());
    let two = refused.task.into_iter().take(2).collect();
    let batch = test.pool.submit_together(two).unwrap();
    assert_eq!(
        batch.all().await,
        [Outcome::Finished { cancelled_by: None }, Outcome::Finished { cancelled_by: None }]
    );
    assert_eq!(batch.first_error().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn first_error_returns_the_first_failure_by_time() {
    let test = TestPool::new(4, 3..=3);
    let part = |spec: Spec, behavior| {
        let (job, end) = test.parts(&spec.id, behavior);
        (spec, job, end)
    };
    let tasks = vec![
        part(Spec::long("late").deadline(Duration::from_secs(9)), Behavior::AwaitCancel),
        part(Spec::long("early").deadline(Duration::from_secs(5)), Behavior::AwaitCancel),
        part(Spec::short("fine"), Behavior::Return(1)),
    ];
    let batch = test.pool.submit_together(tasks).unwrap();
    let failed = Outcome::Finished { cancelled_by: Some(Cause::Deadline) };
    assert_eq!(batch.first_error().await, Err(("early".into(), failed)));
    assert_eq!(batch.stop(), 1);
    let outcomes = batch.all().await;
    assert_eq!(outcomes[0], Outcome::Finished { cancelled_by: Some(Cause::Stopped) });
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_group_ends_with_its_last_completion() {
    let mut test = TestPool::new(10, 2..=2);
    let first = test.hold(Spec::short("a").group("g"));
    let second = test.hold(Spec::short("b").group("g"));
    assert_eq!(test.starts().await, ["a", "b"]);
    let pool = test.pool.clone();
    let waiter = tokio::spawn(async move { pool.group("g").wait().await });
    settle().await;
    assert!(!waiter.is_finished());
    first.send(()).unwrap();
    settle().await;
    assert!(!waiter.is_finished());
    second.send(()).unwrap();
    waiter.await.unwrap();
    assert_eq!(test.ended().await.len(), 2);
    // A group without tasks is not waited for.
    test.pool.group("g").wait().await;
}

#[tokio::test(start_paused = true)]
async fn several_paused_groups_resume_in_the_order_of_their_tasks() {
    let mut test = TestPool::new(20, 1..=1);
    for group in ["x", "y", "z"] {
        test.pool.group(group).pause();
    }
    for (id, group) in [("1", "x"), ("2", "y"), ("3", "z"), ("4", "x"), ("5", "y"), ("6", "z")] {
        test.submit(Spec::short(id).group(group), Behavior::Return(0)).unwrap();
    }
    let go = test.hold(Spec::short("hold"));
    test.submit(Spec::short("7"), Behavior::Return(0)).unwrap();
    assert_eq!(test.starts().await, ["hold"]);
    // Stopping the first task of a group keeps the order of the others.
    assert!(test.pool.stop(&"2".into()));
    test.pool.group("z").resume();
    test.pool.group("y").resume();
    test.pool.group("z").pause();
    test.pool.group("x").resume();
    go.send(()).unwrap();
    let order: Vec<String> = test.ended().await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, ["2", "hold", "1", "4", "5", "7"]);
    assert_eq!(test.pool.snapshot().queued, 2);
    assert_eq!(test.pool.group("z").stop(), 2);
    assert_eq!(test.pool.snapshot().queued, 0);
}

#[tokio::test(start_paused = true)]
async fn a_raised_cap_starts_as_many_tasks_as_it_allows() {
    let mut test = TestPool::new(20, 5..=5);
    test.pool.group("g").cap(Some(0));
    let holds: Vec<_> =
        (0..5).map(|number: u32| test.hold(Spec::short(number.to_string()).group("g"))).collect();
    assert!(test.starts().await.is_empty());
    test.pool.group("g").cap(Some(2));
    assert_eq!(test.starts().await, ["0", "1"]);
    test.pool.group("g").cap(Some(1));
    let mut holds = holds.into_iter();
    holds.next().unwrap().send(()).unwrap();
    // One task of the group still runs, which is what the cap now allows.
    assert!(test.starts().await.is_empty());
    holds.next().unwrap().send(()).unwrap();
    assert_eq!(test.starts().await, ["2"]);
    test.pool.group("g").cap(Some(9));
    assert_eq!(test.starts().await, ["3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_returns_its_handles_and_stops_all_its_tasks() {
    let test = TestPool::new(4, 1..=1);
    let part = |id: &str| {
        let (task, end) = test.parts(&id.into(), Behavior::AwaitCancel);
        (Spec::long(id), task, end)
    };
    let batch = test.pool.submit_together(vec![part("a"), part("b"), part("c")]).unwrap();
    let ids: Vec<_> = batch.handles().iter().map(|handle| handle.id().to_string()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    settle().await;
    assert_eq!((batch.stop(), batch.stop()), (3, 0));
    let stopped = Outcome::NotStarted { cause: Cause::Stopped };
    let running = Outcome::Finished { cancelled_by: Some(Cause::Stopped) };
    assert_eq!(batch.all().await, [running, stopped.clone(), stopped]);
    assert_eq!(batch.first_error().await.unwrap_err().0, "a".into());
}
