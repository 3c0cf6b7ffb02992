//! `garenne task`: stops tasks, finds them, lists those that wait for their time, and lets one run now.

mod find;
mod listing;
mod run_now;
mod waiting;

use clap::Subcommand;
use garenne_common::exit::{Exit, Failure};
use garenne_operator::operator::Operator;

use crate::directives::{self, StopArgs};
use find::FindArgs;
pub(crate) use listing::{TaskState, list};
use run_now::RunNowArgs;
pub(crate) use run_now::{AUDIT_NAME as RUN_NOW, run_now};
use waiting::WaitingArgs;

/// `garenne task …`.
#[derive(Clone, Debug, Subcommand)]
pub enum TaskVerb {
    /// Stop tasks that are queued, running, or waiting for a retry
    #[command(after_help = "Examples:\n  garenne task stop 0198c5c2-…\n  garenne task stop --group import-7")]
    Stop(StopArgs),
    /// Find a task by its id: running, in a queue, or among the dead letters; exits with 1 if it is not found
    ///
    /// Queues that workers consume are not searched, because a search takes their messages and returns them. What was
    /// not searched is listed.
    #[command(after_help = "Example:\n  garenne task find 0198c5c2-…")]
    Find(FindArgs),
    /// List tasks that wait in the retry queues: retries, scheduled tasks and deferred ones, by their due time
    #[command(
        after_help = "Examples:\n  garenne task waiting --lane slow\n  garenne task waiting --json | jq .due_at"
    )]
    Waiting(WaitingArgs),
    /// Move a task from its retry queue to its lane, so that it runs without waiting for its time
    ///
    /// The original is removed after its copy is confirmed. If the command is killed in between, both exist, under the
    /// same id. What is paused stays so.
    #[command(after_help = "Example:\n  garenne task run-now 0198c5c2-… --lane slow")]
    RunNow(RunNowArgs),
}

/// Runs `garenne task …`.
pub async fn run(operator: &Operator, verb: TaskVerb) -> Result<Exit, Failure> {
    match verb {
        TaskVerb::Stop(args) => directives::stop(operator, &args).await,
        TaskVerb::Find(args) => find::run(operator, &args).await,
        TaskVerb::Waiting(args) => waiting::run(operator, &args).await,
        TaskVerb::RunNow(args) => run_now::run(operator, &args).await,
    }
}
