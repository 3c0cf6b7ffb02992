//! Collects items into batches, for work that costs less per batch than per item.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};

use crate::supervise;

/// Bounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchConfig {
    /// Most items in a batch; 0 counts as 1.
    pub size: usize,
    /// How long a batch waits for more items, from its first one.
    pub wait: Duration,
}

/// Why an item was not processed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError<E> {
    /// Processing its batch failed.
    #[error("batch failed: {0}")]
    Failed(E),
    /// Its batch was not processed: the work panicked, or the runtime shuts down.
    #[error("batch not processed")]
    Closed,
}

type Answer<E> = oneshot::Sender<Result<(), Arc<E>>>;

/// Collects items into batches and processes them one batch at a time.
pub struct Batcher<T, E> {
    items: mpsc::Sender<(T, Answer<E>)>,
}

impl<T: Send + 'static, E: Send + Sync + 'static> Batcher<T, E> {
    /// Spawns a task that calls `work` for each batch, never for two at once. While `work` runs, up to one more batch
    /// of items is queued; beyond that, [`Batcher::add`] waits. After a panic of `work`, the callers of that batch get
    /// [`BatchError::Closed`], and the next batch is processed after a pause.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn start<F>(config: BatchConfig, work: impl FnMut(Vec<T>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let size = config.size.max(1);
        let (items, incoming) = mpsc::channel::<(T, Answer<E>)>(size);
        let batches = Box::pin(ReceiverStream::new(incoming).chunks_timeout(size, config.wait));
        let processing = supervise::restarting("batcher", (batches, work), |(batches, work)| {
            process(batches.as_mut(), work).boxed()
        });
        processing.spawn().detach();
        Self { items }
    }

    /// Adds an item and waits until its batch was processed. If the caller stops waiting, the item stays in its
    /// batch.
    ///
    /// # Errors
    /// Its batch failed.
    pub async fn add(&self, item: T) -> Result<(), BatchError<Arc<E>>> {
        let (answer, answered) = oneshot::channel();
        self.items.send((item, answer)).await.map_err(|_| BatchError::Closed)?;
        answered.await.map_err(|_| BatchError::Closed)?.map_err(BatchError::Failed)
    }
}

async fn process<T, E, F: Future<Output = Result<(), E>>>(
    mut batches: Pin<&mut impl Stream<Item = Vec<(T, Answer<E>)>>>,
    work: &mut impl FnMut(Vec<T>) -> F,
) {
    while let Some(batch) = batches.next().await {
        let (items, answers): (Vec<T>, Vec<Answer<E>>) = batch.into_iter().unzip();
        let result = work(items).await.map_err(Arc::new);
        for answer in answers {
            // Fails if the caller stopped waiting; the item was processed anyway.
            let _ = answer.send(result.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::resume_unwind, sync::Mutex};

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const CONFIG: BatchConfig = BatchConfig { size: 3, wait: SECOND };

    type Log = Arc<Mutex<Vec<Vec<u32>>>>;

    /// Logs each batch and takes `takes` for it. A batch that contains 13 fails.
    fn batcher(takes: Duration) -> (Arc<Batcher<u32, &'static str>>, Log) {
        let log = Log::default();
        let batches = Arc::clone(&log);
        let busy = Arc::new(tokio::sync::Mutex::new(()));
        let batcher = Batcher::start(CONFIG, move |batch: Vec<u32>| {
            let (batches, busy) = (Arc::clone(&batches), Arc::clone(&busy));
            async move {
                let _alone = busy.try_lock().expect("two batches overlap");
                tokio::time::sleep(takes).await;
                let bad = batch.contains(&13);
                batches.lock().unwrap().push(batch);
                if bad { Err("unlucky") } else { Ok(()) }
            }
        });
        (Arc::new(batcher), log)
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_batch_runs_at_once_and_a_partial_one_after_the_wait() {
        let (batcher, log) = batcher(Duration::ZERO);
        let begun = Instant::now();
        join_all((0..3).map(|item| batcher.add(item))).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        batcher.add(3).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 1);
        assert_eq!(*log.lock().unwrap(), [vec![0, 1, 2], vec![3]]);
    }

    /// Batches must not overlap, even if the work is slower than the items arrive.
    #[tokio::test(start_paused = true)]
    async fn slow_work_delays_the_next_batch_and_further_adds() {
        let (batcher, log) = batcher(10 * SECOND);
        let begun = Instant::now();
        join_all((0..9).map(|item| batcher.add(item))).await;
        assert_eq!(begun.elapsed().as_secs(), 30);
        let mut items = log.lock().unwrap().concat();
        items.sort_unstable();
        assert_eq!(items, (0..9).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn every_item_of_a_failed_batch_gets_the_error() {
        let (batcher, _log) = batcher(Duration::ZERO);
        let answers = join_all([12, 13, 14].map(|item| batcher.add(item))).await;
        for answer in answers {
            assert_eq!(answer.unwrap_err().to_string(), "batch failed: unlucky");
        }
        batcher.add(15).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_fails_only_its_batch() {
        let batcher: Batcher<u32, &str> = Batcher::start(CONFIG, |batch: Vec<u32>| async move {
            if batch.contains(&13) {
                resume_unwind(Box::new("unlucky"));
            }
            Ok(())
        });
        assert_eq!(batcher.add(13).await, Err(BatchError::Closed));
        assert_eq!(batcher.add(14).await, Ok(()));
    }

    /// The timer of a batch that became full must not end the next batch early.
    #[tokio::test(start_paused = true)]
    async fn the_timer_of_a_full_batch_does_not_affect_the_next_one() {
        let (batcher, log) = batcher(Duration::ZERO);
        join_all((0..3).map(|item| batcher.add(item))).await;
        tokio::time::sleep(SECOND / 2).await;
        let begun = Instant::now();
        let late = async {
            tokio::time::sleep(SECOND * 3 / 4).await;
            batcher.add(4).await
        };
        let (first, second) = tokio::join!(batcher.add(3), late);
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert_eq!(begun.elapsed(), SECOND);
        assert_eq!(*log.lock().unwrap(), [vec![0, 1, 2], vec![3, 4]]);
    }
}
