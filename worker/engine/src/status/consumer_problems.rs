//! Why a lane is not consuming.

use tokio::sync::watch;

/// One queue of a lane and its consumer's problem: [`None`] while the queue is consumed.
type QueueProblem = (String, watch::Receiver<Option<String>>);

/// The problems of a lane's consumers, one consumer per queue.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerProblems(Vec<QueueProblem>);

impl ConsumerProblems {
    pub(crate) fn new(queues: Vec<QueueProblem>) -> Self {
        Self(queues)
    }

    /// The problem of the first queue that has one. A lane with several queues names the queue.
    pub(crate) fn first(&self) -> Option<String> {
        let problem_of = |(queue, problem): &QueueProblem| {
            let problem = problem.borrow().clone()?;
            Some(if self.0.len() > 1 { format!("{queue}: {problem}") } else { problem })
        };
        self.0.iter().find_map(problem_of)
    }
}
