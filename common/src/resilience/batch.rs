//! Doing for many at once what is dear to do for each.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// How a batch is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchConfig {
    /// Most items in a batch.
    pub size: usize,
    /// How long the first item of a batch waits for others.
    pub wait: Duration,
}

/// Why an item was not worked on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError<E> {
    /// The filter refused it; it never came into a batch.
    #[error("{0}")]
    Filtered(String),
    /// The work on its batch failed.
    #[error("batch failed: {0}")]
    Failed(E),
    /// The batcher was shut down before the item came in, or the work panicked.
    #[error("batcher closed")]
    Closed,
}

/// Why the filter refuses an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filtered(
    /// One line for whoever added the item.
    pub String,
);

type Answer<E> = oneshot::Sender<Result<(), Arc<E>>>;
type Filter<T> = Arc<dyn Fn(&T) -> Result<(), Filtered> + Send + Sync>;

/// Gathers items into batches and works on one batch after the other.
pub struct Batcher<T, E> {
    items: mpsc::Sender<(T, Answer<E>)>,
    filter: Filter<T>,
    worker: JoinHandle<()>,
}

impl<T: Send + 'static, E: Send + Sync + 'static> Batcher<T, E> {
    /// Starts a task that calls `work` for each batch. Batches never overlap: while `work` is busy, up
    /// to one more batch of items waits, and who adds beyond that waits too. To be called on a runtime.
    #[must_use]
    pub fn start<F>(config: BatchConfig, mut work: impl FnMut(Vec<T>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let size = config.size.max(1);
        let (items, incoming) = mpsc::channel::<(T, Answer<E>)>(size);
        let worker = tokio::spawn(async move {
            let batches = ReceiverStream::new(incoming).chunks_timeout(size, config.wait);
            tokio::pin!(batches);
            while let Some(batch) = batches.next().await {
                let (items, answers): (Vec<T>, Vec<Answer<E>>) = batch.into_iter().unzip();
                let result = work(items).await.map_err(Arc::new);
                for answer in answers {
                    // Who added the item may have gone; the work is done all the same.
                    let _ = answer.send(result.clone());
                }
            }
        });
        Self { items, filter: Arc::new(|_| Ok(())), worker }
    }

    /// Refuses items of which this is an error before they come into a batch, so that one bad item
    /// cannot spoil a batch of good ones.
    #[must_use]
    pub fn with_filter(
        mut self,
        filter: impl Fn(&T) -> Result<(), Filtered> + Send + Sync + 'static,
    ) -> Self {
        self.filter = Arc::new(filter);
        self
    }

    /// Adds an item and waits until its batch has been worked on. If the caller stops waiting, the item
    /// stays in its batch.
    ///
    /// # Errors
    /// The item was refused, its batch failed, or the batcher is closed.
    pub async fn add(&self, item: T) -> Result<(), BatchError<Arc<E>>> {
        (self.filter)(&item).map_err(|Filtered(why)| BatchError::Filtered(why))?;
        let (answer, answered) = oneshot::channel();
        self.items.send((item, answer)).await.map_err(|_| BatchError::Closed)?;
        answered.await.map_err(|_| BatchError::Closed)?.map_err(BatchError::Failed)
    }

    /// Works on what was added, without waiting for more, and ends.
    pub async fn shutdown(self) {
        drop(self.items);
        // A panic of the work has been told to those who waited, as closed.
        let _ = self.worker.await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const CONFIG: BatchConfig = BatchConfig { size: 3, wait: SECOND };

    type Log = Arc<Mutex<Vec<Vec<u32>>>>;

    /// Logs each batch; work takes this long. A batch with a 13 in it fails.
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
        let batcher = batcher.with_filter(|item| {
            if *item == 99 { Err(Filtered("no such item: 99".to_owned())) } else { Ok(()) }
        });
        (Arc::new(batcher), log)
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_batch_is_worked_on_at_once_and_a_part_of_one_after_the_wait() {
        let (batcher, log) = batcher(Duration::ZERO);
        let begun = Instant::now();
        join_all((0..3).map(|item| batcher.add(item))).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        batcher.add(3).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 1);
        assert_eq!(*log.lock().unwrap(), [vec![0, 1, 2], vec![3]]);
    }

    /// In the library this one learned from, a batch could be worked on while the one before still was.
    #[tokio::test(start_paused = true)]
    async fn slow_work_holds_up_the_next_batch_and_those_who_add() {
        let (batcher, log) = batcher(10 * SECOND);
        let begun = Instant::now();
        join_all((0..9).map(|item| batcher.add(item))).await;
        assert_eq!(begun.elapsed().as_secs(), 30);
        let mut items = log.lock().unwrap().concat();
        items.sort_unstable();
        assert_eq!(items, (0..9).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_of_a_batch_hears_how_it_went() {
        let (batcher, _log) = batcher(Duration::ZERO);
        let answers = join_all([12, 13, 14].map(|item| batcher.add(item))).await;
        for answer in answers {
            assert_eq!(answer.unwrap_err().to_string(), "batch failed: unlucky");
        }
        batcher.add(15).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_filter_refuses_never_comes_into_a_batch() {
        let (batcher, log) = batcher(Duration::ZERO);
        assert_eq!(batcher.add(99).await.unwrap_err().to_string(), "no such item: 99");
        batcher.add(1).await.unwrap();
        assert_eq!(*log.lock().unwrap(), [vec![1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_flushes_without_waiting_for_more() {
        let (batcher, log) = batcher(Duration::ZERO);
        let begun = Instant::now();
        let adding = tokio::spawn({
            let batcher = Arc::clone(&batcher);
            async move { batcher.add(1).await }
        });
        tokio::task::yield_now().await;
        adding.abort();
        assert!(adding.await.unwrap_err().is_cancelled());
        Arc::into_inner(batcher).unwrap().shutdown().await;
        assert_eq!(*log.lock().unwrap(), [vec![1]]);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// In the library this one learned from, a full batch left its timer behind, which then cut the
    /// next batch short.
    #[tokio::test(start_paused = true)]
    async fn a_full_batch_takes_its_timer_with_it() {
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
