//! What is taken in, in which order it starts, and what is refused.

use std::{collections::VecDeque, sync::Arc};

use garenne_common::pool::{Refusal, Spec, Stop};
use tokio::sync::{Notify, oneshot};

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
async fn many_are_taken_in_from_the_front_until_one_is_refused() {
    let mut bench = Bench::new(3, 2..=2);
    let go = Arc::new(Notify::new());
    let mut tasks: VecDeque<_> = (0..5)
        .map(|number| {
            let id = number.to_string();
            let (width, act) = match number {
                1 => (2, Act::Shards { go: Arc::clone(&go), panics: None }),
                _ => (1, Act::Return(number)),
            };
            let (job, end) = bench.parts(&id.as_str().into(), act);
            (Spec::short(id).width(width), job, end)
        })
        .collect();
    // A wide one among them takes one place in the queue, and the order is that of the submission.
    assert_eq!(bench.pool.submit_each(&mut tasks), Err(Refusal::QueueFull { limit: 3 }));
    assert_eq!(tasks.iter().map(|(spec, ..)| spec.id.to_string()).collect::<Vec<_>>(), ["3", "4"]);
    assert_eq!(bench.starts().await, ["0", "1 0/2", "1 1/2"]);
    go.notify_waiters();
    assert_eq!(bench.starts().await, ["2"]);
    tasks[1].0.width = 3;
    let too_wide = Refusal::TooManyWorkers { asked: 3, max: 2 };
    assert_eq!(bench.pool.submit_each(&mut tasks), Err(too_wide));
    assert_eq!(tasks.len(), 1);
    assert_eq!(bench.starts().await, ["3"]);
    tasks[0].0.width = 1;
    bench.pool.begin_shutdown(Stop::Light);
    assert_eq!(bench.pool.submit_each(&mut tasks), Err(Refusal::PoolClosed));
    assert_eq!((tasks.len(), bench.ended().await.len()), (1, 4));
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
