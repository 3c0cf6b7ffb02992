//! Runs a list of tasks on a pool of their own.

use futures_util::stream::{self, StreamExt};
use tokio::{runtime, sync::oneshot};

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
    // With so many unfinished tasks at most, the queue is never full.
    let limit = config.queue;
    let pool = Pool::start(config, runtime)?;
    let attempt = |(index, (spec, task))| {
        let pool = pool.clone();
        async move {
            let (sender, ending) = oneshot::channel();
            let completion = OnEnd(move |ending| drop(sender.send(ending)));
            let result = match pool.submit_detached(spec, task, completion) {
                Ok(()) => Ok(ending.await.expect("an admitted task ends exactly once")),
                Err(refused) => Err(refused.reason),
            };
            (index, result)
        }
    };
    let attempts = stream::iter(tasks.into_iter().enumerate()).map(attempt).buffer_unordered(limit);
    let mut results: Vec<(usize, Attempt<T::Output>)> = attempts.collect().await;
    pool.begin_shutdown(Stop::Light);
    pool.stopped().await;
    results.sort_unstable_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
