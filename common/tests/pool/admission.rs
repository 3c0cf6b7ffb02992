//! What is taken in, in which order it starts, and what is refused.

use garenne_common::pool::{Refusal, Spec, Stop};
use tokio::sync::oneshot;

use crate::bench::{Act, Bench, finished};

#[tokio::test(start_paused = true)]
async fn first_in_is_first_started() {
    let mut bench = Bench::new(10, 1..=1);
    for number in 0..10 {
        bench.submit(Spec::short(number.to_string()), Act::Return(number)).unwrap();
    }
    for number in 0..10 {
        assert_eq!(bench.ending().await, (number.to_string(), finished(number)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_bounds_waiting_and_running_together_and_a_refusal_gives_the_task_back() {
    let mut bench = Bench::new(2, 1..=1);
    let (go, hold) = oneshot::channel();
    bench.submit(Spec::short("a"), Act::Hold(hold, 1)).unwrap();
    bench.submit(Spec::short("b"), Act::Return(2)).unwrap();
    let (job, end) = bench.parts(&"c".into(), Act::Return(3));
    let refused = bench.pool.submit(Spec::short("c"), job, end).unwrap_err();
    assert_eq!(refused.reason, Refusal::QueueFull { limit: 2 });
    assert_eq!(refused.to_string(), "queue full: 2 tasks are waiting or running, the most allowed");
    go.send(()).unwrap();
    assert_eq!(bench.ending().await.0, "a");
    // What was refused is whole, and there is room as soon as the completion was called.
    let (job, end) = refused.task;
    bench.pool.submit_detached(Spec::short("c"), job, end).unwrap();
    assert_eq!(bench.ending().await, ("b".to_owned(), finished(2)));
    assert_eq!(bench.ending().await, ("c".to_owned(), finished(3)));
}

#[tokio::test(start_paused = true)]
async fn refusals_say_what_they_refuse() {
    let bench = Bench::new(4, 1..=2);
    let wide = bench.submit(Spec::short("a").width(3), Act::Return(1)).unwrap_err();
    assert_eq!(wide.to_string(), "too many workers: 3 asked for, at most 2");
    let whole = bench.submit(Spec::short("a").width(2), Act::Return(1)).unwrap_err();
    assert_eq!(whole.to_string(), "width is 2: must be 1 for a task that cannot be sharded");
    let none = bench.submit(Spec::short("a").width(0), Act::Return(1)).unwrap_err();
    assert_eq!(none, Refusal::NotSharded { asked: 0 });
    bench.pool.begin_shutdown(Stop::Light);
    assert_eq!(bench.submit(Spec::short("a"), Act::Return(1)).unwrap_err().to_string(), "pool closed");
}
