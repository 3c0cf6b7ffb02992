//! Spawns the pool's own tasks and threads.
//!
//! User code is caught before it can unwind into them, so a panic here is a defect of this crate. It is logged
//! with the role of the task; the caller states what happens next by its choice of function.

use std::{future::Future, io, panic::AssertUnwindSafe, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::runtime;

use crate::panic::panic_message;

/// Pause before a panicked task is started again; doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Where the pool's tasks are spawned.
#[derive(Clone)]
pub(crate) enum Spawner {
    Runtime(runtime::Handle),
    Simulation(fn(BoxFuture<'static, ()>)),
}

impl Spawner {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Runtime(runtime) => drop(runtime.spawn(task)),
            Self::Simulation(spawn) => spawn(task.boxed()),
        }
    }
}

/// Spawns a task that a panic ends for good. `after` is then called with the panic message, or with `Ok` if the
/// task returned. It is dropped instead, after the task, if the runtime drops the task.
pub(crate) fn once(
    spawner: &Spawner,
    pool: &str,
    role: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
    after: impl FnOnce(Result<(), String>) + Send + 'static,
) {
    let pool = pool.to_owned();
    spawner.spawn(async move {
        let result = AssertUnwindSafe(task).catch_unwind().await.map_err(panic_message);
        if let Err(panic) = &result {
            tracing::error!(pool, role, panic, "internal task or thread panicked; it is not restarted");
        }
        after(result);
    });
}

/// Spawns a task that is started again after a panic.
pub(crate) fn restarting<F: Future<Output = ()> + Send + 'static>(
    spawner: &Spawner,
    pool: &str,
    role: &'static str,
    start: impl Fn() -> F + Send + 'static,
) {
    let pool = pool.to_owned();
    spawner.spawn(async move {
        let mut pause = FIRST_PAUSE;
        while let Err(payload) = AssertUnwindSafe(start()).catch_unwind().await {
            let panic = panic_message(payload);
            tracing::error!(pool, role, panic, "internal task or thread panicked; it is restarted");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    });
}

/// Spawns a thread. `body` must catch the panics of what it runs.
pub(crate) fn thread(pool: &str, number: u64, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // A null byte in a thread's name makes the standard library panic.
    let title = format!("{pool}-{number}").replace('\0', "");
    std::thread::Builder::new().name(title).spawn(body).map(drop)
}

#[cfg(test)]
mod tests {
    use std::{
        panic::resume_unwind,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
    };

    use tokio::{sync::mpsc, time::Instant};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_restarting_task_runs_again_until_it_returns_with_doubling_pauses() {
        let (sender, mut starts) = mpsc::unbounded_channel();
        let begun = Instant::now();
        let runs = Arc::new(AtomicU32::new(0));
        restarting(&Spawner::Runtime(runtime::Handle::current()), "test", "test", move || {
            let (sender, run) = (sender.clone(), runs.fetch_add(1, Ordering::Relaxed));
            async move {
                sender.send(begun.elapsed().as_millis()).unwrap();
                if run < 9 {
                    resume_unwind(Box::new("as asked"));
                }
            }
        });
        let mut seen = Vec::new();
        while let Some(start) = starts.recv().await {
            seen.push(start);
        }
        assert_eq!(seen, [0, 10, 30, 70, 150, 310, 630, 1270, 2270, 3270]);
    }

    #[tokio::test]
    async fn the_caller_learns_whether_a_task_returned_or_panicked() {
        let (sender, mut results) = mpsc::unbounded_channel();
        for panics in [false, true] {
            let sender = sender.clone();
            let task = async move {
                if panics {
                    resume_unwind(Box::new("as asked"));
                }
            };
            once(&Spawner::Runtime(runtime::Handle::current()), "test", "test", task, move |result| {
                sender.send(result).unwrap();
            });
            let expected = if panics { Err("as asked".to_owned()) } else { Ok(()) };
            assert_eq!(results.recv().await, Some(expected));
        }
    }

    #[test]
    fn a_thread_is_named_after_its_pool_and_number() {
        let (sender, title) = std::sync::mpsc::channel();
        let body = move || sender.send(std::thread::current().name().map(str::to_owned)).unwrap();
        thread("test\0pool", 3, body).unwrap();
        assert_eq!(title.recv().unwrap().as_deref(), Some("testpool-3"));
    }
}
