//! The process that a spawned task belongs to. Normally there is one. In a simulation several share a thread, and each
//! can crash alone.

#[cfg(not(feature = "simulation"))]
pub(super) use real::{owned, register};
#[cfg(feature = "simulation")]
pub use simulated::{Process, spawn_in_current};
#[cfg(feature = "simulation")]
pub(super) use simulated::{owned, register};

#[cfg(not(feature = "simulation"))]
mod real {
    use tokio::task::AbortHandle;

    pub(in crate::supervise) fn owned<F>(task: F) -> F {
        task
    }

    pub(in crate::supervise) fn register(_: impl FnOnce() -> AbortHandle) {}
}

#[cfg(feature = "simulation")]
mod simulated {
    use std::{
        future::Future,
        sync::{Arc, Mutex},
    };

    use futures_util::future::BoxFuture;
    use tokio::task::{AbortHandle, JoinHandle, futures::TaskLocalFuture};

    use crate::lock::lock;

    tokio::task_local! {
        static CURRENT: Option<Process>;
    }

    /// A process: the tasks that its first task has spawned, and the tasks of those. A clone is the same process.
    #[derive(Clone, Debug, Default)]
    pub struct Process(Arc<Mutex<Tasks>>);

    #[derive(Debug, Default)]
    struct Tasks {
        alive: Vec<AbortHandle>,
        /// The number of tasks at which those that have ended are removed.
        cleanup_at: usize,
        crashed: bool,
    }

    /// Number of tasks from which on ended ones are removed.
    const MIN_CLEANUP: usize = 64;

    impl Process {
        /// Spawns the first task of the process.
        pub fn start<F: Future<Output: Send> + Send + 'static>(&self, task: F) -> JoinHandle<F::Output> {
            let spawned = tokio::spawn(CURRENT.scope(Some(self.clone()), task));
            self.add(spawned.abort_handle());
            spawned
        }

        /// Ends the process: none of its tasks runs any further than to its next `await`. What they hold is dropped
        /// when the runtime gets to it, and tasks that destructors spawn do not run.
        pub fn crash(&self) {
            let tasks = {
                let mut tasks = lock(&self.0);
                tasks.crashed = true;
                std::mem::take(&mut tasks.alive)
            };
            tasks.iter().for_each(AbortHandle::abort);
        }

        fn add(&self, task: AbortHandle) {
            let mut tasks = lock(&self.0);
            if tasks.crashed {
                drop(tasks);
                return task.abort();
            }
            if tasks.alive.len() >= tasks.cleanup_at.max(MIN_CLEANUP) {
                tasks.alive.retain(|task| !task.is_finished());
                tasks.cleanup_at = 2 * tasks.alive.len();
            }
            tasks.alive.push(task);
        }
    }

    fn current() -> Option<Process> {
        CURRENT.try_with(Clone::clone).ok().flatten()
    }

    /// The task as one of the current process.
    pub(in crate::supervise) fn owned<F: Future>(task: F) -> TaskLocalFuture<Option<Process>, F> {
        CURRENT.scope(current(), task)
    }

    /// Adds a task that was spawned now to the current process.
    pub(in crate::supervise) fn register(task: impl FnOnce() -> AbortHandle) {
        if let Some(process) = current() {
            process.add(task());
        }
    }

    /// Spawns a task of the current process, for crates that do not know `supervise`.
    pub fn spawn_in_current(task: BoxFuture<'static, ()>) {
        let spawned = tokio::spawn(owned(task));
        register(|| spawned.abort_handle());
    }

    #[cfg(test)]
    mod tests {
        use std::time::Duration;

        use tokio::{sync::mpsc, time::sleep};

        use super::*;
        use crate::supervise::isolated;

        /// Spawns a task that sends `name` when it is dropped.
        struct SpawnsOnDrop(mpsc::UnboundedSender<&'static str>);

        impl Drop for SpawnsOnDrop {
            fn drop(&mut self) {
                let sender = self.0.clone();
                sender.send("dropped").unwrap();
                isolated("late", async move { sender.send("ran").unwrap() }).spawn().detach();
            }
        }

        #[tokio::test(start_paused = true)]
        async fn a_crash_ends_all_tasks_of_a_process_and_no_others() {
            let (sender, mut events) = mpsc::unbounded_channel();
            let start = |process: &Process, name: &'static str| {
                let sender = sender.clone();
                process.start(async move {
                    let ticks = async move {
                        let _guard = SpawnsOnDrop(sender.clone());
                        loop {
                            sleep(Duration::from_secs(1)).await;
                            sender.send(name).unwrap();
                        }
                    };
                    isolated("ticks", ticks).spawn().detach();
                });
            };
            let (one, other) = (Process::default(), Process::default());
            start(&one, "one");
            start(&other, "other");
            sleep(Duration::from_millis(1500)).await;
            one.crash();
            sleep(Duration::from_secs(1)).await;
            let mut seen = Vec::new();
            while let Ok(event) = events.try_recv() {
                seen.push(event);
            }
            assert_eq!(seen, ["one", "other", "dropped", "other"]);
        }
    }
}
