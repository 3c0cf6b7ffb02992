//! Which tasks are admitted, in which order they start, and which are refused.

use std::{collections::VecDeque, sync::Arc};

use garenne_pool::{Refusal, Spec, Stop};
use tokio::sync::{Notify, oneshot};

use crate::test_pool::{Behavior, TestPool, finished};

#[tokio::test(start_paused = true)]
async fn tasks_start_in_the_order_of_submission() {
    let mut test = TestPool::new(10, 1..=1);
    for number in 0..10 {
        test.submit(Spec::short(number.to_string()), Behavior::Return(number)).unwrap();
    }
    for number in 0..10 {
        assert_eq!(test.ending().await, (number.to_string(), finished(number)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_limits_queued_and_running_tasks_and_a_refusal_returns_the_task() {
    let mut test = TestPool::new(2, 1..=1);
    let (go, hold) = oneshot::channel();
    test.submit(Spec::short("a"), Behavior::Hold(hold, 1)).unwrap();
    test.submit(Spec::short("b"), Behavior::Return(2)).unwrap();
    let (job, end) = test.parts(&"c".into(), Behavior::Return(3));
    let refused = test.pool.submit(Spec::short("c"), job, end).unwrap_err();
    assert_eq!(refused.reason, Refusal::QueueFull { limit: 2 });
    assert_eq!(refused.to_string(), "queue full: the limit is 2 queued and running tasks");
    go.send(()).unwrap();
    assert_eq!(test.ending().await.0, "a");
    // The refused task is unchanged, and there is room as soon as the completion was called.
    let (job, end) = refused.task;
    test.pool.submit_detached(Spec::short("c"), job, end).unwrap();
    assert_eq!(test.ending().await, ("b".to_owned(), finished(2)));
    assert_eq!(test.ending().await, ("c".to_owned(), finished(3)));
}

#[tokio::test(start_paused = true)]
async fn submit_each_admits_from_the_front_until_a_task_is_refused() {
    let mut test = TestPool::new(3, 2..=2);
    let go = Arc::new(Notify::new());
    let mut tasks: VecDeque<_> = (0..5)
        .map(|number| {
            let id = number.to_string();
            let (width, behavior) = match number {
                1 => (2, Behavior::Shards { go: Arc::clone(&go), panics: None }),
                _ => (1, Behavior::Return(number)),
            };
            let (job, end) = test.parts(&id.as_str().into(), behavior);
            (Spec::short(id).width(width), job, end)
        })
        .collect();
    // A task of several shards takes one place in the queue, and tasks start in the order of submission.
    assert_eq!(test.pool.submit_each(&mut tasks), Err(Refusal::QueueFull { limit: 3 }));
    assert_eq!(tasks.iter().map(|(spec, ..)| spec.id.to_string()).collect::<Vec<_>>(), ["3", "4"]);
    assert_eq!(test.starts().await, ["0", "1 0/2", "1 1/2"]);
    go.notify_waiters();
    assert_eq!(test.starts().await, ["2"]);
    tasks[1].0.width = 3;
    let too_wide = Refusal::TooManyWorkers { asked: 3, max: 2 };
    assert_eq!(test.pool.submit_each(&mut tasks), Err(too_wide));
    assert_eq!(tasks.len(), 1);
    assert_eq!(test.starts().await, ["3"]);
    tasks[0].0.width = 1;
    test.pool.begin_shutdown(Stop::Light);
    assert_eq!(test.pool.submit_each(&mut tasks), Err(Refusal::PoolClosed));
    assert_eq!((tasks.len(), test.ended().await.len()), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn refusals_name_the_request_and_the_limit() {
    let test = TestPool::new(4, 1..=2);
    let wide = test.submit(Spec::short("a").width(3), Behavior::Return(1)).unwrap_err();
    assert_eq!(wide.to_string(), "too many workers: 3 requested, the maximum is 2");
    let whole = test.submit(Spec::short("a").width(2), Behavior::Return(1)).unwrap_err();
    assert_eq!(whole.to_string(), "width is 2: must be 1 for a task that cannot be sharded");
    let none = test.submit(Spec::short("a").width(0), Behavior::Return(1)).unwrap_err();
    assert_eq!(none, Refusal::NotSharded { asked: 0 });
    test.pool.begin_shutdown(Stop::Light);
    assert_eq!(test.submit(Spec::short("a"), Behavior::Return(1)).unwrap_err().to_string(), "pool closed");
}
