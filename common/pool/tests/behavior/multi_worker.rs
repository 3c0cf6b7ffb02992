//! Tasks that run on several workers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_pool::{Cause, Ending, Outcome, Refusal, Report, Spec, Status, Stop};
use tokio::sync::Notify;

use crate::test_pool::{Behavior, TestPool, finished, settle};

fn shards(panics: Option<u32>) -> (Arc<Notify>, Behavior) {
    let go = Arc::new(Notify::new());
    (Arc::clone(&go), Behavior::Shards { go, panics })
}

#[tokio::test(start_paused = true)]
async fn a_task_starts_with_the_idle_workers_and_is_joined_by_others() {
    let mut test = TestPool::new(4, 3..=3);
    let busy = test.hold(Spec::short("busy"));
    let (go, behavior) = shards(None);
    let handle = test.submit(Spec::short("wide").width(3), behavior).unwrap();
    assert_eq!(test.starts().await, ["busy", "wide 0/3", "wide 1/3"]);
    go.notify_waiters();
    assert!(test.ended().await.is_empty());
    busy.send(()).unwrap();
    assert_eq!(test.starts().await, ["wide 2/3"]);
    go.notify_waiters();
    handle.wait().await;
    // The task ends once, with the joined outputs of its shards: 1 + 2 + 4.
    let ended = test.ended().await;
    assert_eq!(ended, [("busy".to_owned(), finished(0)), ("wide".to_owned(), finished(7))]);
}

#[tokio::test(start_paused = true)]
async fn shards_and_other_tasks_alternate() {
    let mut test = TestPool::new(10, 2..=2);
    let holds = [test.hold(Spec::short("hold 1")), test.hold(Spec::short("hold 2"))];
    let (go, behavior) = shards(None);
    test.submit(Spec::short("wide").width(2), behavior).unwrap();
    let small = [test.hold(Spec::short("small 1")), test.hold(Spec::short("small 2"))];
    let [first, second] = holds;
    test.starts().await;
    first.send(()).unwrap();
    assert_eq!(test.starts().await, ["wide 0/2"]);
    second.send(()).unwrap();
    // The second shard before the next task of the queue.
    assert_eq!(test.starts().await, ["wide 1/2"]);
    go.notify_waiters();
    assert_eq!(test.starts().await, ["small 1", "small 2"]);
    drop(small);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_panics_fails_the_task_once_and_stops_the_other_shards() {
    let mut test = TestPool::new(4, 2..=2);
    let (_go, behavior) = shards(Some(1));
    test.submit(Spec::long("wide").width(2), behavior).unwrap();
    assert_eq!(
        test.ending().await,
        ("wide".to_owned(), Ending::Panicked { message: "test panic".to_owned() })
    );
    assert!(test.ended().await.is_empty());
    assert_eq!(test.compensated.try_recv().unwrap().0, "wide".into());
    assert!(test.compensated.try_recv().is_err());
    assert_eq!(test.pool.snapshot().running, 0);
}

#[tokio::test(start_paused = true)]
async fn all_shards_are_stopped_together() {
    let mut test = TestPool::new(4, 2..=2);
    let (_go, behavior) = shards(None);
    test.submit(Spec::long("wide").width(2), behavior).unwrap();
    assert_eq!(test.starts().await.len(), 2);
    let (_go, behavior) = shards(None);
    test.submit(Spec::long("waits").width(2), behavior).unwrap();
    assert!(test.pool.stop(&"waits".into()));
    assert_eq!(test.ending().await, ("waits".to_owned(), Ending::NotStarted { cause: Cause::Stopped }));
    assert!(test.pool.stop(&"wide".into()));
    let cancelled_by = Some(Cause::Stopped);
    assert_eq!(test.ending().await, ("wide".to_owned(), Ending::Finished { output: 202, cancelled_by }));
}

#[tokio::test(start_paused = true)]
async fn soft_shutdown_starts_the_remaining_shards_of_a_started_task() {
    let mut test = TestPool::new(4, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    let (go, behavior) = shards(None);
    test.submit(Spec::short("wide").width(2), behavior).unwrap();
    assert_eq!(test.starts().await, ["busy", "wide 0/2"]);
    test.pool.begin_shutdown(Stop::Soft);
    busy.send(()).unwrap();
    assert_eq!(test.starts().await, ["wide 1/2"]);
    go.notify_waiters();
    assert_eq!(test.pool.stopped().await, Report { finished: 2, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn hard_shutdown_ends_a_task_whose_shards_have_not_all_started() {
    let mut test = TestPool::new(4, 2..=2);
    let _busy = test.hold(Spec::short("busy"));
    let (_go, behavior) = shards(None);
    test.submit(Spec::long("wide").width(2), behavior).unwrap();
    assert_eq!(test.starts().await, ["busy", "wide 0/2"]);
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    assert_eq!(test.ending().await, ("wide".to_owned(), gave_up));
    assert_eq!(test.pool.stopped().await, Report { interrupted: 1, abandoned: 1, ..Report::default() });
}

#[tokio::test(start_paused = true)]
async fn the_cap_of_a_group_counts_shards() {
    let mut test = TestPool::new(4, 3..=3);
    test.pool.group("g").cap(Some(2));
    let (go, behavior) = shards(None);
    test.submit(Spec::short("wide").width(3).group("g"), behavior).unwrap();
    assert_eq!(test.starts().await, ["wide 0/3", "wide 1/3"]);
    go.notify_one();
    assert_eq!(test.starts().await, ["wide 2/3"]);
    go.notify_waiters();
    test.pool.group("g").wait().await;
    assert_eq!(test.ended().await, [("wide".to_owned(), finished(7))]);
}

#[tokio::test(start_paused = true)]
async fn soft_shutdown_ends_a_task_whose_paused_group_cannot_start_the_other_shards() {
    let mut test = TestPool::new(4, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    let (go, behavior) = shards(None);
    test.submit(Spec::short("wide").width(2).group("g"), behavior).unwrap();
    assert_eq!(test.starts().await, ["busy", "wide 0/2"]);
    test.pool.group("g").pause();
    test.pool.begin_shutdown(Stop::Soft);
    go.notify_waiters();
    let gave_up = Ending::GaveUp { cause: Cause::Shutdown, stuck: false };
    assert_eq!(test.ending().await, ("wide".to_owned(), gave_up));
    busy.send(()).unwrap();
    test.pool.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_handle_of_a_task_with_shards_shows_one_status() {
    let mut test = TestPool::new(4, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    assert_eq!(test.start().await, "busy");
    let (go, behavior) = shards(None);
    let (_go, waiting) = shards(None);
    let wide = test.submit(Spec::short("wide").width(2), behavior).unwrap();
    let waits = test.submit(Spec::short("waits").width(2), waiting).unwrap();
    assert_eq!(wide.status(), Status::Queued);
    assert_eq!(test.starts().await, ["wide 0/2"]);
    assert_eq!((wide.status(), waits.status()), (Status::Running, Status::Queued));
    go.notify_waiters();
    settle().await;
    // One shard has ended, the other has not started.
    assert_eq!(wide.status(), Status::Running);
    assert!(waits.stop());
    assert_eq!(waits.wait().await, Outcome::NotStarted { cause: Cause::Stopped });
    busy.send(()).unwrap();
    test.starts().await;
    go.notify_waiters();
    assert_eq!(wide.wait().await, Outcome::Finished { cancelled_by: None });
    assert_eq!(test.pool.snapshot().totals.admitted, 3);
}

#[tokio::test(start_paused = true)]
async fn shards_of_a_refused_submission_are_not_started() {
    let mut test = TestPool::new(2, 2..=2);
    let part = |test: &TestPool, id: &str, width| {
        let (_go, behavior) = shards(None);
        let (task, end) = test.parts(&id.into(), behavior);
        (Spec::short(id).width(width), task, end)
    };
    let tasks = vec![part(&test, "a", 2), part(&test, "b", 3)];
    let refused = test.pool.submit_together(tasks).unwrap_err();
    assert_eq!((refused.reason, refused.task.len()), (Refusal::TooManyWorkers { asked: 3, max: 2 }, 2));
    assert!(test.starts().await.is_empty());
    // A task takes one place in the queue, however many shards it has.
    let batch = test.pool.submit_together(vec![part(&test, "a", 2), part(&test, "b", 2)]).unwrap();
    assert_eq!(test.starts().await, ["a 0/2", "a 1/2"]);
    assert_eq!(batch.handles().len(), 2);
    let refused = test.submit(Spec::short("c"), Behavior::Return(1)).unwrap_err();
    assert_eq!(refused, Refusal::QueueFull { limit: 2 });
}

#[tokio::test(start_paused = true)]
async fn helpers_start_only_while_no_task_waits() {
    let mut test = TestPool::new(10, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    let (go, behavior) = shards(None);
    test.submit(Spec::long("helped").helped_by(1), behavior).unwrap();
    let (first, second) = (test.hold(Spec::short("first")), test.hold(Spec::short("second")));
    assert_eq!(test.starts().await, ["busy", "helped 0/2"]);
    // Each free worker takes a waiting task, and the last one helps.
    busy.send(()).unwrap();
    assert_eq!(test.starts().await, ["first"]);
    first.send(()).unwrap();
    assert_eq!(test.starts().await, ["second"]);
    second.send(()).unwrap();
    assert_eq!(test.starts().await, ["helped 1/2"]);
    assert_eq!(test.ended().await.len(), 3);
    go.notify_waiters();
    assert_eq!(test.ending().await, ("helped".to_owned(), finished(3)));
}

#[tokio::test(start_paused = true)]
async fn a_task_ends_without_the_helpers_that_have_not_started() {
    let mut test = TestPool::new(4, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    let (go, behavior) = shards(None);
    let handle = test.submit(Spec::long("helped").helped_by(1), behavior).unwrap();
    assert_eq!(test.starts().await, ["busy", "helped 0/2"]);
    go.notify_waiters();
    handle.wait().await;
    assert_eq!(test.ending().await, ("helped".to_owned(), finished(1)));
    busy.send(()).unwrap();
    assert_eq!(test.ending().await, ("busy".to_owned(), finished(0)));
    assert!(test.starts().await.is_empty());
    test.pool.begin_shutdown(Stop::Light);
    assert_eq!(test.pool.stopped().await, Report::default());
}

#[tokio::test(start_paused = true)]
async fn a_task_gets_as_many_helpers_as_there_can_be() {
    let mut test = TestPool::new(4, 2..=3);
    let (go, behavior) = shards(None);
    test.submit(Spec::long("helped").helped_by(9), behavior).unwrap();
    assert_eq!(test.starts().await, ["helped 0/3", "helped 1/3", "helped 2/3"]);
    go.notify_waiters();
    assert_eq!(test.ending().await, ("helped".to_owned(), finished(7)));
    // A task that cannot be sharded runs alone.
    let alone = test.hold(Spec::long("alone").helped_by(1));
    assert_eq!(test.starts().await, ["alone"]);
    alone.send(()).unwrap();
    assert_eq!(test.ending().await, ("alone".to_owned(), finished(0)));
}

#[tokio::test(start_paused = true)]
async fn a_helper_is_told_that_a_task_waits() {
    let mut test = TestPool::new(4, 2..=2);
    let (ask, answers) = (Arc::new(Notify::new()), Arc::<Mutex<Vec<_>>>::default());
    let behavior = Behavior::AskWhetherTasksWait { ask: Arc::clone(&ask), answers: Arc::clone(&answers) };
    test.submit(Spec::long("helped").helped_by(1), behavior).unwrap();
    assert_eq!(test.starts().await, ["helped 0/2", "helped 1/2"]);
    ask.notify_waiters();
    settle().await;
    let _waits = test.hold(Spec::short("waits"));
    ask.notify_waiters();
    settle().await;
    let mut answers = answers.lock().unwrap().clone();
    answers.sort_unstable();
    assert_eq!(answers, [(0, false), (0, false), (1, false), (1, true)]);
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::ZERO });
}

#[tokio::test(start_paused = true)]
async fn a_hard_shutdown_does_not_fail_a_task_for_its_helpers() {
    let mut test = TestPool::new(4, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    let (go, behavior) = shards(None);
    test.submit(Spec::long("helped").helped_by(1), behavior).unwrap();
    assert_eq!(test.starts().await, ["busy", "helped 0/2"]);
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    let cancelled_by = Some(Cause::Shutdown);
    let output = 100 + Cause::Shutdown as u32;
    assert_eq!(test.ending().await, ("helped".to_owned(), Ending::Finished { output, cancelled_by }));
    busy.send(()).unwrap();
    go.notify_waiters();
    test.pool.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_helper_that_panics_fails_the_task_once() {
    let mut test = TestPool::new(4, 2..=2);
    let (_go, behavior) = shards(Some(1));
    test.submit(Spec::long("helped").helped_by(1), behavior).unwrap();
    let panicked = Ending::Panicked { message: "test panic".to_owned() };
    assert_eq!(test.ending().await, ("helped".to_owned(), panicked));
    assert!(test.ended().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn helpers_respect_the_cap_of_the_group() {
    let mut test = TestPool::new(10, 4..=4);
    test.pool.group("g").cap(Some(2));
    let (go, behavior) = shards(None);
    test.submit(Spec::long("helped").group("g").helped_by(3), behavior).unwrap();
    assert_eq!(test.starts().await, ["helped 0/4", "helped 1/4"]);
    // A task of the group comes before a helper, and a helper fills the free place afterwards.
    let other = test.hold(Spec::short("other").group("g"));
    test.pool.group("g").cap(Some(3));
    assert_eq!(test.starts().await, ["other"]);
    other.send(()).unwrap();
    assert_eq!(test.starts().await, ["helped 2/4"]);
    go.notify_waiters();
    assert_eq!(test.ending().await.0, "other");
    assert_eq!(test.ending().await, ("helped".to_owned(), finished(7)));
    assert!(test.pool.snapshot().groups.iter().all(|group| group.running == 0));
}
