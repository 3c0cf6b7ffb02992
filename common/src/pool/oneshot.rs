//! One-shot use: run these tasks, answer every outcome.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{runtime, sync::Notify};

use super::{Completion, ConfigError, Ending, Pool, PoolConfig, Refusal, Spec, Stop, Task};

/// How one task of [`run_all`] fared: its ending, or why it could never be admitted.
pub type Attempt<O> = Result<Ending<O>, Refusal>;

/// Tasks made before there is room for them.
const AHEAD: usize = 64;

struct Gathered<O> {
    endings: Mutex<Vec<Option<Attempt<O>>>>,
    room: Notify,
}

struct Gather<O> {
    into: Arc<Gathered<O>>,
    at: usize,
}

impl<O: Send + 'static> Completion<O> for Gather<O> {
    fn complete(self, ending: Ending<O>) {
        self.into.set(self.at, Ok(ending));
        self.into.room.notify_one();
    }
}

impl<O> Gathered<O> {
    fn set(&self, at: usize, ending: Attempt<O>) {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(ending);
    }
}

/// Runs all tasks on a pool of their own and answers how each ended, in their order. More tasks than
/// the queue holds are fed in as room is made. A task that could never be admitted (it asks for more
/// workers than there may be) has its refusal as its outcome.
///
/// # Errors
/// A configuration that cannot work; nothing was run then.
pub async fn run_all<T: Task>(
    config: PoolConfig,
    runtime: runtime::Handle,
    tasks: impl IntoIterator<Item = (Spec, T)>,
) -> Result<Vec<Attempt<T::Output>>, ConfigError> {
    let pool: Pool<T, Gather<T::Output>> = Pool::start(config, runtime)?;
    let gathered = Arc::new(Gathered { endings: Mutex::new(Vec::new()), room: Notify::new() });
    let mut tasks = tasks.into_iter().enumerate();
    let mut waiting = VecDeque::with_capacity(AHEAD);
    loop {
        for (at, (spec, task)) in tasks.by_ref().take(AHEAD - waiting.len()) {
            gathered.endings.lock().unwrap_or_else(PoisonError::into_inner).push(None);
            waiting.push_back((spec, task, Gather { into: Arc::clone(&gathered), at }));
        }
        if waiting.is_empty() {
            break;
        }
        match pool.submit_each(&mut waiting) {
            Ok(()) => {}
            Err(Refusal::QueueFull { .. }) => gathered.room.notified().await,
            Err(reason) => {
                if let Some((_, _, refused)) = waiting.pop_front() {
                    gathered.set(refused.at, Err(reason));
                }
            }
        }
    }
    pool.begin_shutdown(Stop::Light);
    pool.stopped().await;
    let mut endings = gathered.endings.lock().unwrap_or_else(PoisonError::into_inner);
    // None cannot be left: each admitted task ends once, and the pool has stopped.
    Ok(std::mem::take(&mut *endings).into_iter().flatten().collect())
}
