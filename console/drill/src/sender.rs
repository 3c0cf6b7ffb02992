//! What a drill and a demo differ in: who sends the tasks, and what is told about it.

use garenne_common::exit::Failure;

use crate::{account::Store, engine::Engine, fleet::WorkerExit, schedule::Step};

/// Sends the tasks of a run.
pub(crate) trait Sender {
    /// What the tasks are called in the plural.
    const TASKS: &'static str;
    /// What should happen to each task once.
    const EFFECT: &'static str;

    /// Adds what was acknowledged since the last call to the account, and sends more. `is_calm` says that no step is
    /// to come.
    async fn poll(&mut self, engine: &mut Engine, is_calm: bool) -> Result<(), Failure>;

    /// The progress by which steps are due, from 0 to 1. [`None`] if none may be due now.
    fn progress(&mut self, engine: &Engine) -> Option<f64>;

    /// Takes a step that is due.
    async fn step(&mut self, step: Step, engine: &mut Engine) -> Result<(), Failure>;

    /// Whether every task is sent and acknowledged.
    fn is_over(&self) -> bool;

    /// Whether it may send nothing for a while although it is not over.
    fn may_pause(&self) -> bool {
        false
    }

    /// Ends the sending because the user wants the result now. `false` if there would be none.
    fn end_early(&mut self) -> bool {
        false
    }

    /// How often a task was published again because the broker did not answer; nothing if that is not counted.
    fn published_again(&self) -> Option<u64> {
        None
    }

    /// Tells about a worker that was stopped.
    fn tell_stopped(&self, _exit: &WorkerExit) {}

    /// Stops the processes of the sender. Returns what else the run has shown.
    async fn finish(&mut self, _store: Option<&Store>) -> String {
        String::new()
    }
}
