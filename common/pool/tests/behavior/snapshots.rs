//! Snapshots, and the debug output of the public types.

use std::{sync::Arc, time::Duration};

use garenne_pool::{
    Backoff, Cause, Observer, Outcome, Phase, PoolOptions, Refused, Spec, Status, Stop, TaskState, Totals,
    Workers,
};
use tokio::{runtime, sync::Notify};

use crate::test_pool::{Behavior, TestPool, config};

struct NoMetrics;

impl Observer for NoMetrics {}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_running_tasks_with_group_shard_state_and_duration() {
    let mut test = TestPool::new(9, 3..=3);
    let _short = test.hold(Spec::short("short"));
    test.submit(Spec::long("long").group("g"), Behavior::AwaitCancel).unwrap();
    let mut ignoring = Spec::long("stopping");
    ignoring.group = Some("g".into());
    test.submit(ignoring, Behavior::IgnoreCancel).unwrap();
    assert_eq!(test.starts().await.len(), 3);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(test.pool.stop(&"stopping".into()));
    let view = test.pool.snapshot();
    assert_eq!((view.running, view.queued, view.queue, view.stuck), (3, 0, 9, 0));
    let mut shown: Vec<_> = view
        .tasks
        .iter()
        .map(|task| {
            let seconds = task.running_seconds.map(|seconds| seconds.round());
            let group = task.group.as_ref().map(ToString::to_string);
            (task.id.to_string(), group, task.shard, task.state, seconds, task.on_thread)
        })
        .collect();
    shown.sort_by(|a, b| a.0.cmp(&b.0));
    let group = Some("g".to_owned());
    let expected = [
        ("long".to_owned(), group.clone(), (0, 1), TaskState::Running, Some(1.0), false),
        ("short".to_owned(), None, (0, 1), TaskState::Running, None, false),
        ("stopping".to_owned(), group, (0, 1), TaskState::Stopping(Cause::Stopped), Some(1.0), false),
    ];
    assert_eq!(shown, expected);
    let workers: std::collections::BTreeSet<_> = view.tasks.iter().map(|task| task.worker).collect();
    assert_eq!(workers.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_observed_pool_shows_how_long_short_tasks_run() {
    let options = PoolOptions { observer: Some(Arc::new(NoMetrics)), ..PoolOptions::default() };
    let mut test = TestPool::with(config(9, 1..=1), options, runtime::Handle::current());
    let _short = test.hold(Spec::short("short"));
    assert_eq!(test.start().await, "short");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(test.pool.snapshot().tasks[0].running_seconds, Some(3.0));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_groups_sorted_with_their_settings_and_tasks() {
    let mut test = TestPool::new(20, 4..=4);
    test.pool.group("b").cap(Some(1));
    test.pool.group("c").pause();
    let holds: Vec<_> =
        ["b", "b", "b", "c", "a"].map(|group| test.hold(Spec::short(group).group(group))).into();
    assert_eq!(test.starts().await, ["a", "b"]);
    let shown = |test: &TestPool| -> Vec<_> {
        let groups = test.pool.snapshot().groups;
        let view = |group: &garenne_pool::GroupView| {
            (group.name.to_string(), group.cap, group.paused, group.running, group.queued)
        };
        groups.iter().map(view).collect()
    };
    let expected = [
        ("a".to_owned(), None, false, 1, 0),
        ("b".to_owned(), Some(1), false, 1, 2),
        ("c".to_owned(), None, true, 0, 1),
    ];
    assert_eq!(shown(&test), expected);
    assert_eq!(test.pool.snapshot().queued, 3);
    for hold in holds {
        let _ = hold.send(());
    }
    assert_eq!(test.ended().await.len(), 4);
    // Settings keep a group in the list, tasks do not.
    assert_eq!(shown(&test), [("b".to_owned(), Some(1), false, 0, 0), ("c".to_owned(), None, true, 0, 1)]);
    test.pool.group("b").cap(None);
    test.pool.group("c").resume();
    assert_eq!(test.ended().await.len(), 1);
    assert!(shown(&test).is_empty());
}

#[tokio::test(start_paused = true)]
async fn ready_tasks_and_shards_of_a_group_count_as_queued() {
    let mut test = TestPool::new(20, 2..=2);
    let busy = test.hold(Spec::short("busy"));
    let go = Arc::new(Notify::new());
    let shards = Behavior::Shards { go: Arc::clone(&go), panics: None };
    test.submit(Spec::short("wide").width(2).group("g"), shards).unwrap();
    test.submit(Spec::short("ready").group("g"), Behavior::Return(1)).unwrap();
    assert_eq!(test.starts().await, ["busy", "wide 0/2"]);
    let view = test.pool.snapshot();
    assert_eq!((view.groups[0].running, view.groups[0].queued, view.queued), (1, 2, 2));
    busy.send(()).unwrap();
    go.notify_waiters();
    test.starts().await;
    go.notify_waiters();
    assert_eq!(test.ended().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_restarting_worker_is_neither_idle_nor_busy() {
    let hour = Duration::from_secs(3600);
    let options = PoolOptions { restart: Backoff { base: hour, cap: hour }, ..PoolOptions::default() };
    let mut test = TestPool::with(config(9, 2..=3), options, runtime::Handle::current());
    test.submit(Spec::short("panics"), Behavior::Panic).unwrap();
    let _busy = test.hold(Spec::short("busy"));
    assert_eq!(test.starts().await.len(), 2);
    let workers = test.pool.snapshot().workers;
    let expected = Workers { idle: 0, busy: 1, restarting: 1, min: 2, max: 3, restarts: 1 };
    assert_eq!(workers, expected);
    // A shutdown does not wait for the pause.
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    let begun = tokio::time::Instant::now();
    test.pool.stopped().await;
    assert_eq!(begun.elapsed().as_secs(), 1);
    assert_eq!(test.pool.snapshot().workers.restarting, 0);
}

#[tokio::test(start_paused = true)]
async fn totals_count_every_kind_of_ending() {
    let mut test = TestPool::new(20, 4..=4);
    test.submit(Spec::short("panics"), Behavior::Panic).unwrap();
    test.submit(Spec::short("finishes"), Behavior::Return(1)).unwrap();
    test.submit(Spec::long("cancelled"), Behavior::AwaitCancel).unwrap();
    test.pool.group("g").pause();
    test.submit(Spec::short("not started").group("g"), Behavior::Return(1)).unwrap();
    test.submit(Spec::short("abandoned"), Behavior::IgnoreCancel).unwrap();
    test.starts().await;
    let before = test.pool.snapshot().totals;
    assert_eq!(before, Totals { admitted: 5, finished: 1, panicked: 1, ..Totals::default() });
    test.pool.begin_shutdown(Stop::Hard { grace: Duration::from_secs(1) });
    let report = test.pool.stopped().await;
    // The report does not count what ended before the shutdown.
    assert_eq!((report.finished, report.panicked), (0, 0));
    assert_eq!((report.not_started, report.interrupted, report.abandoned), (1, 1, 1));
    let totals = test.pool.snapshot().totals;
    let expected =
        Totals { admitted: 5, finished: 1, not_started: 1, interrupted: 1, abandoned: 1, panicked: 1 };
    assert_eq!(totals, expected);
}

#[tokio::test(start_paused = true)]
async fn handles_report_every_status() {
    let mut test = TestPool::new(9, 1..=1);
    let (go, hold) = tokio::sync::oneshot::channel();
    let running = test.submit(Spec::short("a"), Behavior::Hold(hold, 1)).unwrap();
    let queued = test.submit(Spec::short("b"), Behavior::Return(1)).unwrap();
    assert_eq!(test.start().await, "a");
    assert_eq!((running.id(), queued.id()), (&"a".into(), &"b".into()));
    assert_eq!((running.status(), queued.status()), (Status::Running, Status::Queued));
    assert_eq!((running.error(), queued.error()), (None, None));
    assert_eq!(format!("{queued:?}"), r#"Handle { id: b, status: Queued }"#);
    assert!(queued.stop());
    let outcome = Outcome::NotStarted { cause: Cause::Stopped };
    assert_eq!((queued.status(), queued.error()), (Status::Ended(outcome.clone()), Some(outcome)));
    go.send(()).unwrap();
    assert_eq!(running.wait().await, Outcome::Finished { cancelled_by: None });
    assert_eq!(running.status(), Status::Ended(Outcome::Finished { cancelled_by: None }));
    assert_eq!(format!("{:?}", test.pool), r#"Pool { name: "test", .. }"#);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_with_its_reason_as_the_source() {
    let test = TestPool::new(1, 1..=1);
    test.pool.begin_shutdown(Stop::Light);
    test.pool.stopped().await;
    assert_eq!(test.pool.snapshot().phase, Phase::Closed);
    let (task, end) = test.parts(&"a".into(), Behavior::Return(1));
    let refused: Refused<_> = test.pool.submit(Spec::short("a"), task, end).unwrap_err();
    assert_eq!(format!("{refused:?}"), "Refused { reason: PoolClosed, .. }");
    let source = std::error::Error::source(&refused).unwrap();
    assert_eq!((refused.to_string(), source.to_string()), ("pool closed".into(), "pool closed".into()));
}
