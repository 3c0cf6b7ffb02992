//! What the transports have in common.

use std::sync::Arc;

use garenne::layer::{Next, Task};
use garenne_common::text::printable;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{answer::Answer, metrics::Counters};

/// How much of a problem is shown, in characters. A part of it may be what the program wrote.
const SHOWN: usize = 300;

/// A handler of one transport.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Whether it can run tasks.
    fn ready(&self) -> &Ready;

    /// Runs what the tasks need until `stopping` is cancelled.
    fn serve(
        self: Arc<Self>,
        counters: Counters,
        stopping: CancellationToken,
    ) -> impl Future<Output = ()> + Send;

    fn run(&self, task: Task) -> impl Future<Output = Answer> + Send;
}

/// Runs the tasks of one of a handler's kinds.
pub(crate) struct TasksOf<H>(pub(crate) Arc<H>);

impl<H: Handler> Next for TasksOf<H> {
    fn run(&self, task: Task) -> impl Future<Output = Answer> + Send {
        self.0.run(task)
    }
}

/// Whether a handler can run tasks, and if not, why. It begins as not ready without a problem.
pub(crate) struct Ready {
    name: Arc<str>,
    state: watch::Sender<Result<(), String>>,
}

impl Ready {
    pub(crate) fn new(name: &Arc<str>) -> Self {
        Self { name: Arc::clone(name), state: watch::Sender::new(Err(String::new())) }
    }

    pub(crate) fn set(&self, state: Result<(), &str>) {
        let problem = |problem: &str| {
            let problem: String = printable(problem).chars().take(SHOWN).collect();
            format!("handler {}: {problem}", self.name)
        };
        let state = state.map_err(problem);
        self.state.send_if_modified(|was| std::mem::replace(was, state.clone()) != state);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Result<(), String>> {
        self.state.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_handler_and_is_bounded_and_printable() {
        let ready = Ready::new(&"images".into());
        let (state, problem) = (ready.subscribe(), || ready.subscribe().borrow().clone().unwrap_err());
        assert_eq!(problem(), "");
        ready.set(Err("it exited: \u{1b}[31mred\r\nline"));
        assert_eq!(problem(), "handler images: it exited: \\u{1b}[31mred\\r\\nline");
        ready.set(Err(&"x".repeat(10_000)));
        assert_eq!(problem().len(), "handler images: ".len() + SHOWN);
        ready.set(Ok(()));
        assert!(state.borrow().is_ok());
    }
}
