//! The events of an observer, and the records that only an observed pool keeps.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_pool::{Cause, Ending, EndingKind, Observer, Placement, PoolOptions, Spec};
use tokio::runtime;

use crate::test_pool::{Behavior, TestPool, config, finished};

#[derive(Default)]
struct Seen {
    waits: Mutex<Vec<u64>>,
    runs: Mutex<Vec<(u64, EndingKind)>>,
}

impl Observer for Seen {
    fn started(&self, waited: Duration, placement: Placement) {
        assert_eq!(placement, Placement::Runtime);
        self.waits.lock().unwrap().push(waited.as_secs());
    }

    fn ended(&self, ran: Duration, ending: EndingKind) {
        self.runs.lock().unwrap().push((ran.as_secs(), ending));
    }
}

fn observed() -> (Arc<Seen>, TestPool) {
    let seen = Arc::new(Seen::default());
    let observer = Some(Arc::clone(&seen) as Arc<dyn Observer>);
    let options = PoolOptions { observer, ..PoolOptions::default() };
    (seen, TestPool::with(config(9, 1..=1), options, runtime::Handle::current()))
}

#[tokio::test(start_paused = true)]
async fn an_observer_receives_how_long_each_task_waited_and_ran() {
    let (seen, mut test) = observed();
    let first = test.hold(Spec::short("a"));
    test.submit(Spec::long("b").deadline(Duration::from_secs(3)), Behavior::AwaitCancel).unwrap();
    test.submit(Spec::short("c"), Behavior::Panic).unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    first.send(()).unwrap();
    for _ in 0..3 {
        test.ending().await;
    }
    assert_eq!(*seen.waits.lock().unwrap(), [0, 2, 5]);
    let expected = [(2, EndingKind::Finished), (3, EndingKind::Interrupted), (0, EndingKind::Panicked)];
    assert_eq!(*seen.runs.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_have_waited_too_long_are_handed_back() {
    let (_seen, mut test) = observed();
    let first = test.hold(Spec::short("runs"));
    assert_eq!(test.start().await, "runs");
    test.submit(Spec::short("old"), Behavior::Return(1)).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    test.submit(Spec::short("young"), Behavior::Return(2)).unwrap();
    assert_eq!(test.pool.hand_back_waiting(Duration::from_secs(4)), 1);
    assert_eq!(test.ending().await, ("old".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    first.send(()).unwrap();
    assert_eq!(test.ending().await, ("runs".to_owned(), finished(0)));
    assert_eq!(test.ending().await, ("young".to_owned(), finished(2)));
}

#[tokio::test(start_paused = true)]
async fn snapshots_show_the_labels_of_running_tasks() {
    let mut test = TestPool::new(3, 2..=2);
    let hold = test.hold(Spec::short("a"));
    // The label of the second task panics. The task runs without a label.
    test.submit(Spec::long("b"), Behavior::IgnoreCancel).unwrap();
    assert_eq!(test.starts().await, ["a", "b"]);
    let tasks = test.pool.snapshot().tasks;
    let mut labels: Vec<_> = tasks.iter().map(|task| (task.id.to_string(), task.label)).collect();
    labels.sort_unstable();
    assert_eq!(labels, [("a".to_owned(), Some("hold")), ("b".to_owned(), None)]);
    hold.send(()).unwrap();
    assert_eq!(test.ending().await.0, "a");
}

#[tokio::test(start_paused = true)]
async fn tasks_are_handed_back_only_after_they_have_waited_longer() {
    let (_seen, mut test) = observed();
    let _first = test.hold(Spec::short("runs"));
    assert_eq!(test.start().await, "runs");
    test.submit(Spec::short("a"), Behavior::Return(1)).unwrap();
    test.submit(Spec::short("b"), Behavior::Return(1)).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(test.pool.hand_back_waiting(Duration::from_secs(6)), 0);
    let waited = Duration::from_millis(4_999);
    assert_eq!(test.pool.hand_back_waiting(waited), 2);
    assert_eq!(test.ended().await.len(), 2);
}
