//! Runs a list of tasks on a pool of their own.

use std::collections::VecDeque;

use tokio::{runtime, sync::mpsc};

use crate::{
    config::{ConfigError, PoolConfig},
    ending::Ending,
    pool::Pool,
    refusal::Refusal,
    shutdown::Stop,
    spec::Spec,
    task::{OnEnd, Task},
};

/// The result of one task of [`run_all`]: how it ended, or why it could not be admitted.
pub type Attempt<O> = Result<Ending<O>, Refusal>;

/// The most tasks that are taken from the iterator before there is room for them.
const READ_AHEAD: usize = 64;

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
    let pool = Pool::start(config, runtime)?;
    let (sender, mut endings) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    let mut tasks = tasks.into_iter();
    let mut unsubmitted = VecDeque::with_capacity(READ_AHEAD);
    loop {
        for (spec, task) in tasks.by_ref().take(READ_AHEAD - unsubmitted.len()) {
            let (sender, index) = (sender.clone(), results.len());
            results.push(None);
            unsubmitted.push_back((spec, task, OnEnd(move |ending| drop(sender.send((index, ending))))));
        }
        if unsubmitted.is_empty() {
            break;
        }
        match pool.submit_each(&mut unsubmitted) {
            Ok(()) => {}
            Err(Refusal::QueueFull { .. }) => {
                // A full queue holds a task that will end.
                if let Some((index, ending)) = endings.recv().await {
                    results[index] = Some(Ok(ending));
                }
            }
            Err(reason) => {
                let refused = results.len() - unsubmitted.len();
                results[refused] = Some(Err(reason));
                unsubmitted.pop_front();
            }
        }
    }
    pool.begin_shutdown(Stop::Light);
    pool.stopped().await;
    while let Ok((index, ending)) = endings.try_recv() {
        results[index] = Some(Ok(ending));
    }
    // None is missing: each admitted task ends exactly once, and the pool is closed.
    Ok(results.into_iter().flatten().collect())
}
