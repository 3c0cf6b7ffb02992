//! Running a list of tasks and collecting the results.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use garenne_pool::{Ending, Refusal, Spec, Task, TaskContext, TaskId, run_all};
use tokio::runtime;

use crate::test_pool::{Behavior, TestTask, config, finished};

#[tokio::test(start_paused = true)]
async fn run_all_returns_every_result_in_order() {
    // Many more than the queue holds.
    let tasks = (0..100_u32).map(|number| {
        let behavior = if number == 50 { Behavior::Panic } else { Behavior::Return(number) };
        let spec = Spec::short(TaskId::number(number.into())).width(if number == 60 { 9 } else { 1 });
        (spec, TestTask { behavior, started: None })
    });
    let answers = run_all(config(4, 1..=2), runtime::Handle::current(), tasks).await.unwrap();
    assert_eq!(answers.len(), 100);
    for (number, answer) in (0..).zip(answers) {
        match number {
            50 => assert_eq!(answer, Ok(Ending::Panicked { message: "test panic".to_owned() })),
            60 => assert_eq!(answer, Err(Refusal::TooManyWorkers { asked: 9, max: 2 })),
            _ => assert_eq!(answer, Ok(finished(number))),
        }
    }
}

/// Counts the tasks that ran.
struct Counted(Arc<AtomicUsize>);

impl Task for Counted {
    type Output = ();

    async fn run(self, _: TaskContext) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn run_all_takes_tasks_from_a_long_list_only_as_others_run() {
    let ran = Arc::new(AtomicUsize::new(0));
    let tasks = (0..5_000_usize).map(|number| {
        let ahead = number - ran.load(Ordering::SeqCst);
        assert!(ahead <= 100, "task {number} was taken while {ahead} had not run");
        (Spec::short(TaskId::number(number as u64)), Counted(Arc::clone(&ran)))
    });
    let answers = run_all(config(4, 1..=2), runtime::Handle::current(), tasks).await.unwrap();
    assert_eq!((answers.len(), ran.load(Ordering::SeqCst)), (5_000, 5_000));
}

#[tokio::test(start_paused = true)]
async fn run_all_runs_nothing_if_the_configuration_is_invalid() {
    let tasks = [(Spec::short("a"), TestTask { behavior: Behavior::Return(1), started: None })];
    let refused = run_all(config(1, 1..=2), runtime::Handle::current(), tasks).await.unwrap_err();
    assert_eq!(refused.to_string(), "workers is 1..2: must be at most queue (1)");
}

#[tokio::test(start_paused = true)]
async fn run_all_can_run_in_a_spawned_task() {
    let tasks = [(Spec::short("a"), TestTask { behavior: Behavior::Return(1), started: None })];
    let running = tokio::spawn(run_all(config(4, 1..=2), runtime::Handle::current(), tasks));
    assert_eq!(running.await.unwrap().unwrap(), [Ok(finished(1))]);
}
