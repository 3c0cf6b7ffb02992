//! Runs a list of tasks on a pool of their own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime, sync::Notify};

use crate::{
    completion::Completion,
    config::{ConfigError, PoolConfig},
    ending::Ending,
    pool::Pool,
    refusal::Refusal,
    shutdown::Stop,
    spec::Spec,
    task::Task,
};

/// The result of one task of [`run_all`]: how it ended, or why it could not be admitted.
pub type Attempt<O> = Result<Ending<O>, Refusal>;

/// The most tasks that are taken from the iterator before there is room for them.
const READ_AHEAD: usize = 64;

/// The results by the position of their tasks.
struct Results<O> {
    results: Mutex<Vec<Option<Attempt<O>>>>,
    task_ended: Notify,
}

/// Stores the ending of one task.
struct StoreResult<O> {
    results: Arc<Results<O>>,
    index: usize,
}

impl<O: Send + 'static> Completion<O> for StoreResult<O> {
    fn complete(self, ending: Ending<O>) {
        self.results.lock()[self.index] = Some(Ok(ending));
        self.results.task_ended.notify_one();
    }
}

impl<O> Results<O> {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Attempt<O>>>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs all tasks on a pool of their own and returns how each ended, in their order.
///
/// There may be more tasks than the queue holds: they are submitted as others end. The result of a task that cannot
/// be admitted, because it asks for more workers than the pool may have, is its refusal.
///
/// # Errors
/// The configuration is not allowed. No task was run.
pub async fn run_all<T: Task>(
    config: PoolConfig,
    runtime: runtime::Handle,
    tasks: impl IntoIterator<Item = (Spec, T)>,
) -> Result<Vec<Attempt<T::Output>>, ConfigError> {
    let pool: Pool<T, StoreResult<T::Output>> = Pool::start(config, runtime)?;
    let results = Arc::new(Results { results: Mutex::new(Vec::new()), task_ended: Notify::new() });
    let mut tasks = tasks.into_iter().enumerate();
    let mut unsubmitted = VecDeque::with_capacity(READ_AHEAD);
    loop {
        for (index, (spec, task)) in tasks.by_ref().take(READ_AHEAD - unsubmitted.len()) {
            results.lock().push(None);
            unsubmitted.push_back((spec, task, StoreResult { results: Arc::clone(&results), index }));
        }
        if unsubmitted.is_empty() {
            break;
        }
        match pool.submit_each(&mut unsubmitted) {
            Ok(()) => {}
            Err(Refusal::QueueFull { .. }) => results.task_ended.notified().await,
            Err(reason) => {
                if let Some((_, _, refused)) = unsubmitted.pop_front() {
                    results.lock()[refused.index] = Some(Err(reason));
                }
            }
        }
    }
    pool.begin_shutdown(Stop::Light);
    pool.stopped().await;
    // None is missing: each admitted task ends exactly once, and the pool is closed.
    let results = std::mem::take(&mut *results.lock());
    Ok(results.into_iter().flatten().collect())
}
