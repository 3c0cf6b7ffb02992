//! Publishes what a spool contains, in order.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::PublishError;
use garenne_protocol::task::NewTask;
use garenne_spool::{
    Record, Spool, SpoolError,
    task::{record_of, task_of},
};
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use super::TaskPublisher;

/// Most records that are published and acknowledged together.
const BATCH: usize = 500;
/// Most bytes of them, unless the first record is larger.
const BATCH_BYTES: usize = 1 << 20;
/// With a rate, batches are so small that there are this many a second.
const BATCHES_PER_SECOND: f64 = 20.0;

/// Why a batch was not drained. The spool still has it.
#[derive(Debug, Error)]
pub enum DrainError {
    /// The spool failed.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// At least one task is not confirmed.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Moves tasks from a spool to the broker. One batch is confirmed before the next is published, so that their order is
/// kept.
pub struct SpoolDrain {
    spool: Spool,
    publisher: Arc<dyn TaskPublisher>,
    /// Most records per second; may be infinite.
    rate: f64,
    /// When the next batch may be published.
    due: Instant,
}

impl SpoolDrain {
    /// Drains `spool` to `publisher` with at most `rate` records per second.
    pub fn new(spool: Spool, publisher: Arc<dyn TaskPublisher>, rate: Option<f64>) -> Self {
        Self { spool, publisher, rate: rate.unwrap_or(f64::INFINITY), due: Instant::now() }
    }

    /// Publishes the next batch, waits for its confirms and acknowledges it. Returns the number of its records, with
    /// unreadable ones; 0 if the spool is empty.
    ///
    /// Records that can never be published are set aside.
    ///
    /// # Errors
    /// Nothing of the batch is acknowledged. It is published again, under the same ids, by the next call.
    pub async fn next_batch(&mut self) -> Result<u64, DrainError> {
        sleep_until(self.due).await;
        let most = (self.rate / BATCHES_PER_SECOND).clamp(1.0, BATCH as f64) as usize;
        let start = self.spool.status().borrow().acknowledged;
        let batch = self.spool.read(start, most, BATCH_BYTES).await?;
        if batch.end <= start {
            return Ok(0);
        }
        let now = SystemTime::now();
        let (mut tasks, mut rejected) = (Vec::new(), Vec::new());
        for record in batch.records {
            match task_of(record.clone(), now) {
                Ok(task) => tasks.push(task),
                Err(error) => {
                    tracing::error!(%error, "a record of the spool cannot be published and is set aside");
                    rejected.push(record);
                }
            }
        }
        self.publish(tasks, &mut rejected).await?;
        if !rejected.is_empty() {
            self.spool.set_aside(rejected).await?;
        }
        if let Err(error) = self.spool.ack(batch.end).await {
            tracing::warn!(%error, "tasks of the spool are confirmed, but may be published again after a restart");
        }
        let records = batch.end - start;
        self.due = Instant::now().max(self.due) + Duration::from_secs_f64(records as f64 / self.rate);
        Ok(records)
    }

    /// Publishes the tasks. Those that can never be published are added to `rejected`.
    async fn publish(&self, tasks: Vec<NewTask>, rejected: &mut Vec<Record>) -> Result<(), PublishError> {
        if tasks.is_empty() {
            return Ok(());
        }
        match self.publisher.publish(tasks.clone()).await {
            Err(PublishError::TooLarge { .. }) => {}
            outcome => return outcome,
        }
        // The error does not tell which task it is.
        for task in tasks {
            match self.publisher.publish(vec![task.clone()]).await {
                Err(error @ PublishError::TooLarge { .. }) => {
                    tracing::error!(id = %task.id, %error, "a record of the spool cannot be published and is set aside");
                    rejected.push(record_of(&task, SystemTime::now()));
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use garenne_protocol::task::{ContentType, Kind, TaskId};
    use garenne_spool::{Inspection, SpoolConfig};

    use super::*;
    use crate::tests::memory_publisher::MemoryPublisher;

    fn record(id: &str) -> Record {
        let kind = Kind::parse("reading.process").unwrap();
        let task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
        record_of(&NewTask { id: TaskId::parse(id).unwrap(), ..task }, SystemTime::now())
    }

    async fn filled(directory: &Path, records: Vec<Record>) -> Spool {
        let spool = Spool::open(directory, SpoolConfig::default()).await.unwrap();
        spool.append(records).await.unwrap();
        spool
    }

    fn ids(publisher: &MemoryPublisher) -> Vec<String> {
        publisher.tasks().iter().map(|task| task.id.to_string()).collect()
    }

    #[tokio::test]
    async fn a_batch_is_acknowledged_after_its_confirms_and_published_again_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let spool = filled(folder.path(), vec![record("a"), record("b")]).await;
        let publisher = MemoryPublisher::new();
        let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
        publisher.fail(Some(PublishError::Blocked));
        assert!(matches!(drain.next_batch().await, Err(DrainError::Publish(PublishError::Blocked))));
        assert_eq!(spool.status().borrow().records(), 2);
        publisher.fail(None);
        assert_eq!(drain.next_batch().await.unwrap(), 2);
        assert_eq!((ids(&publisher), spool.status().borrow().records()), (vec!["a".into(), "b".into()], 0));
        assert_eq!(drain.next_batch().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_record_that_can_never_be_published_is_set_aside_and_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let foreign = Record { body: b"no task".to_vec(), ..record("x") };
        let spool = filled(folder.path(), vec![record("a"), foreign.clone(), record("b")]).await;
        let publisher = MemoryPublisher::new();
        let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
        assert_eq!(drain.next_batch().await.unwrap(), 3);
        assert_eq!((ids(&publisher), spool.status().borrow().set_aside), (vec!["a".into(), "b".into()], 1));

        spool.append(vec![record("large")]).await.unwrap();
        publisher.fail(Some(PublishError::TooLarge { what: "body", bytes: 2, limit: 1 }));
        assert_eq!(drain.next_batch().await.unwrap(), 1);
        let kept: Vec<String> = Inspection::open(folder.path())
            .unwrap()
            .segments()
            .flat_map(|(_, segment)| {
                segment.unwrap().records().map(|(_, record)| record.id).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(kept, ["x", "large"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_bounds_the_records_per_second() {
        let folder = tempfile::tempdir().unwrap();
        let records = (0..100).map(|number| record(&format!("r{number}"))).collect();
        let spool = filled(folder.path(), records).await;
        let publisher = MemoryPublisher::new();
        let mut drain = SpoolDrain::new(spool, publisher.clone(), Some(50.0));
        let start = Instant::now();
        while drain.next_batch().await.unwrap() > 0 {}
        assert_eq!(publisher.tasks().len(), 100);
        assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
