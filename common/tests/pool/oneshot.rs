//! Running a list of tasks and answering how each ended.

use garenne_common::pool::{Ending, Refusal, Spec, TaskId, run_all};
use tokio::runtime;

use crate::bench::{Act, Job, config, finished};

#[tokio::test(start_paused = true)]
async fn every_outcome_is_answered_in_order() {
    // Many more than the queue holds.
    let tasks = (0..100_u32).map(|number| {
        let act = if number == 50 { Act::Panic } else { Act::Return(number) };
        let spec = Spec::short(TaskId::number(number.into())).width(if number == 60 { 9 } else { 1 });
        (spec, Job { act, started: None })
    });
    let answers = run_all(config(4, 1..=2), runtime::Handle::current(), tasks).await.unwrap();
    assert_eq!(answers.len(), 100);
    for (number, answer) in (0..).zip(answers) {
        match number {
            50 => assert_eq!(answer, Ok(Ending::Panicked { message: "as asked".to_owned() })),
            60 => assert_eq!(answer, Err(Refusal::TooManyWorkers { asked: 9, max: 2 })),
            _ => assert_eq!(answer, Ok(finished(number))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_cannot_work_runs_nothing() {
    let tasks = [(Spec::short("a"), Job { act: Act::Return(1), started: None })];
    let refused = run_all(config(1, 1..=2), runtime::Handle::current(), tasks).await.unwrap_err();
    assert_eq!(refused.to_string(), "workers is 1..2: must be at most queue (1)");
}
