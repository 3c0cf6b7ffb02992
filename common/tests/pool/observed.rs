//! What an observer is told, and what only an observed pool knows.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::pool::{Cause, Ending, EndingKind, Observer, Placement, PoolOptions, Spec};
use tokio::runtime;

use crate::bench::{Act, Bench, config, finished};

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

fn observed() -> (Arc<Seen>, Bench) {
    let seen = Arc::new(Seen::default());
    let observer = Some(Arc::clone(&seen) as Arc<dyn Observer>);
    let options = PoolOptions { observer, ..PoolOptions::default() };
    (seen, Bench::with(config(9, 1..=1), options, runtime::Handle::current()))
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_how_long_each_waited_and_ran() {
    let (seen, mut bench) = observed();
    let first = bench.hold(Spec::short("a"));
    bench.submit(Spec::long("b").deadline(Duration::from_secs(3)), Act::Obey).unwrap();
    bench.submit(Spec::short("c"), Act::Panic).unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    first.send(()).unwrap();
    for _ in 0..3 {
        bench.ending().await;
    }
    assert_eq!(*seen.waits.lock().unwrap(), [0, 2, 5]);
    let expected = [(2, EndingKind::Finished), (3, EndingKind::Interrupted), (0, EndingKind::Panicked)];
    assert_eq!(*seen.runs.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_has_waited_too_long_can_be_handed_back() {
    let (_seen, mut bench) = observed();
    let first = bench.hold(Spec::short("runs"));
    assert_eq!(bench.start().await, "runs");
    bench.submit(Spec::short("old"), Act::Return(1)).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    bench.submit(Spec::short("young"), Act::Return(2)).unwrap();
    assert_eq!(bench.pool.hand_back_waiting(Duration::from_secs(4)), 1);
    assert_eq!(bench.ending().await, ("old".to_owned(), Ending::NotStarted { cause: Cause::Shutdown }));
    first.send(()).unwrap();
    assert_eq!(bench.ending().await, ("runs".to_owned(), finished(0)));
    assert_eq!(bench.ending().await, ("young".to_owned(), finished(2)));
}

#[tokio::test(start_paused = true)]
async fn snapshots_call_a_running_task_what_it_calls_itself() {
    let mut bench = Bench::new(3, 2..=2);
    let hold = bench.hold(Spec::short("a"));
    // A name that panics is none, and the task runs all the same.
    bench.submit(Spec::long("b"), Act::Deaf).unwrap();
    assert_eq!(bench.starts().await, ["a", "b"]);
    let tasks = bench.pool.snapshot().tasks;
    let mut labels: Vec<_> = tasks.iter().map(|task| (task.id.to_string(), task.label)).collect();
    labels.sort_unstable();
    assert_eq!(labels, [("a".to_owned(), Some("hold")), ("b".to_owned(), None)]);
    hold.send(()).unwrap();
    assert_eq!(bench.ending().await.0, "a");
}
