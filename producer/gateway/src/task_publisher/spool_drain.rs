//! Publishes or forwards what a spool contains, in order.

use std::{
    collections::VecDeque,
    fmt::Display,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::PublishError;
use garenne_common::backoff::Backoff;
use garenne_protocol::task::NewTask;
use garenne_spool::{Position, Record, Spool, SpoolError, task::task_of};
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::TaskPublisher;
use crate::forward::{ForwardError, Forwarder, Rejected};

/// Most records that are published and acknowledged together.
const BATCH: usize = 500;
/// Most bytes of them, unless the first record is larger.
const BATCH_BYTES: usize = 1 << 20;
/// With a rate, batches are so small that there are this many a second.
const BATCHES_PER_SECOND: f64 = 20.0;
/// How long tasks that the broker returns are published again before they are set aside. Queues may be declared and bound
/// meanwhile, such as after a broker was replaced.
const RETURN_GRACE: Duration = Duration::from_secs(10);

/// Why a batch was not drained. The spool still has it.
#[derive(Debug, Error)]
pub enum DrainError {
    /// The spool failed.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// At least one task is not confirmed.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The central gateway has not confirmed the tasks.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The broker returned at least one task as unroutable. It is published again for ten seconds.
    #[error("{0}; it is set aside if this lasts for {RETURN_GRACE:?}")]
    Returned(PublishError),
}

/// Where a spool is drained to.
enum Target {
    Broker(Arc<dyn TaskPublisher>),
    Gateway(Box<Forwarder>),
}

/// Moves tasks from a spool to the broker or a central gateway. One batch is confirmed before the next is published, so that their order is
/// kept.
pub struct SpoolDrain {
    spool: Spool,
    target: Target,
    /// Most records per second; may be infinite.
    rate: f64,
    /// When the next batch may be published.
    due: Instant,
    /// When a task was returned for the first time since the spool was empty.
    returned_at: Option<Instant>,
    /// The batch that the last call could not complete.
    open_batch: Option<OpenBatch>,
}

/// A batch that was read and is not acknowledged.
struct OpenBatch {
    start: Position,
    end: Position,
    unconfirmed: VecDeque<(NewTask, Record)>,
    /// Records that are to be set aside.
    rejected: Vec<Record>,
}

impl SpoolDrain {
    /// Drains `spool` to `publisher` with at most `rate` records per second.
    pub fn new(spool: Spool, publisher: Arc<dyn TaskPublisher>, rate: Option<f64>) -> Self {
        Self::to(Target::Broker(publisher), spool, rate)
    }

    /// Drains `spool` to a central gateway with at most `rate` records per second.
    pub(crate) fn forwarding(spool: Spool, forwarder: Forwarder, rate: Option<f64>) -> Self {
        Self::to(Target::Gateway(Box::new(forwarder)), spool, rate)
    }

    fn to(target: Target, spool: Spool, rate: Option<f64>) -> Self {
        Self {
            spool,
            target,
            rate: rate.unwrap_or(f64::INFINITY),
            due: Instant::now(),
            returned_at: None,
            open_batch: None,
        }
    }

    /// The spool.
    pub(crate) fn spool(&self) -> &Spool {
        &self.spool
    }

    /// Drains the spool whenever it has content. Ends when `stop` is cancelled, after the batch in progress, or when the
    /// spool is closed.
    pub async fn run(&mut self, stop: CancellationToken) {
        let mut status = self.spool.status();
        let mut backoff = Backoff::reconnect();
        loop {
            let content = async { status.wait_for(|it| it.records() > 0).await.is_ok() };
            if stop.run_until_cancelled(content).await != Some(true) {
                return;
            }
            match self.next_batch().await {
                Ok(_) => backoff = Backoff::reconnect(),
                Err(error) => {
                    let wait = backoff.next_wait();
                    match &error {
                        DrainError::Forward(cause) if cause.needs_operator() => {
                            tracing::error!(%error, ?wait, "cannot drain the spool, trying again");
                        }
                        _ => tracing::info!(%error, ?wait, "cannot drain the spool, trying again"),
                    }
                    stop.run_until_cancelled(sleep(wait)).await;
                }
            }
        }
    }

    /// Publishes the next batch, waits for its confirms and acknowledges it. Returns the number of its records, with
    /// unreadable ones; 0 if the spool is empty.
    ///
    /// Records that can never be published are set aside, also those that the broker still returns as unroutable ten
    /// seconds after the first one.
    ///
    /// # Errors
    /// The batch is not acknowledged. The next call continues with its tasks that are not confirmed.
    pub async fn next_batch(&mut self) -> Result<u64, DrainError> {
        sleep_until(self.due).await;
        let mut batch = match self.open_batch.take() {
            Some(batch) => batch,
            None => match self.read_batch().await? {
                Some(batch) => batch,
                None => {
                    self.returned_at = None;
                    return Ok(0);
                }
            },
        };
        if let Err(error) = self.settle(&mut batch).await {
            self.open_batch = Some(batch);
            return Err(error);
        }
        if let Err(error) = self.spool.ack(batch.end).await {
            tracing::warn!(%error, "tasks of the spool are confirmed, but may be published again after a restart");
        }
        let records = batch.end - batch.start;
        self.due = Instant::now().max(self.due) + Duration::from_secs_f64(records as f64 / self.rate);
        Ok(records)
    }

    /// Reads the next batch; `None` if the spool is empty.
    async fn read_batch(&self) -> Result<Option<OpenBatch>, DrainError> {
        let most = (self.rate / BATCHES_PER_SECOND).clamp(1.0, BATCH as f64) as usize;
        let start = self.spool.status().borrow().acknowledged;
        let read = self.spool.read(start, most, BATCH_BYTES).await?;
        if read.end <= start {
            return Ok(None);
        }
        let now = SystemTime::now();
        let mut batch =
            OpenBatch { start, end: read.end, unconfirmed: VecDeque::new(), rejected: Vec::new() };
        for record in read.records {
            match task_of(record.clone(), now) {
                Ok(task) => batch.unconfirmed.push_back((task, record)),
                Err(error) => batch.reject(record, &error),
            }
        }
        Ok(Some(batch))
    }

    /// Publishes the tasks of a batch, and sets aside those that can never be published.
    ///
    /// # Errors
    /// The batch has tasks that are not confirmed, or rejected records that are not stored.
    async fn settle(&mut self, batch: &mut OpenBatch) -> Result<(), DrainError> {
        let tasks: Vec<NewTask> = batch.unconfirmed.iter().map(|(task, _)| task.clone()).collect();
        if !tasks.is_empty() {
            match &self.target {
                Target::Broker(publisher) => match publisher.publish(tasks).await {
                    Ok(()) => batch.unconfirmed.clear(),
                    // The error does not tell which task it is.
                    Err(PublishError::TooLarge { .. } | PublishError::Unroutable { .. }) => {
                        let publisher = Arc::clone(publisher);
                        self.publish_each(&*publisher, batch).await?;
                    }
                    Err(error) => return Err(error.into()),
                },
                Target::Gateway(forwarder) => batch.confirm_except(forwarder.forward(&tasks).await?),
            }
        }
        if !batch.rejected.is_empty() {
            self.spool.set_aside(batch.rejected.clone()).await?;
        }
        Ok(())
    }

    /// Publishes the tasks one by one.
    async fn publish_each(
        &mut self,
        publisher: &dyn TaskPublisher,
        batch: &mut OpenBatch,
    ) -> Result<(), DrainError> {
        let mut returned = None;
        for _ in 0..batch.unconfirmed.len() {
            let Some((task, record)) = batch.unconfirmed.pop_front() else { break };
            match publisher.publish(vec![task.clone()]).await {
                Ok(()) => {}
                Err(error @ PublishError::TooLarge { .. }) => batch.reject(record, &error),
                Err(error @ PublishError::Unroutable { .. }) => {
                    let since = *self.returned_at.get_or_insert_with(Instant::now);
                    if since.elapsed() < RETURN_GRACE {
                        batch.unconfirmed.push_back((task, record));
                        returned = Some(error);
                    } else {
                        batch.reject(record, &error);
                    }
                }
                Err(error) => {
                    batch.unconfirmed.push_front((task, record));
                    return Err(error.into());
                }
            }
        }
        returned.map_or(Ok(()), |error| Err(DrainError::Returned(error)))
    }
}

impl OpenBatch {
    /// All tasks are confirmed, except those that are rejected.
    fn confirm_except(&mut self, rejected: Vec<Rejected>) {
        let records: Vec<_> = self.unconfirmed.drain(..).map(|(_, record)| record).collect();
        for Rejected { record, detail, .. } in rejected {
            self.reject(records[record].clone(), &detail);
        }
    }

    fn reject(&mut self, record: Record, error: &dyn Display) {
        let id = &record.id;
        tracing::error!(id, %error, "a record of the spool cannot be published and is set aside");
        self.rejected.push(record);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use garenne_protocol::task::{ContentType, Kind, TaskId};
    use garenne_spool::{Inspection, SpoolConfig, task::record_of};

    use super::*;
    use crate::tests::memory_publisher::MemoryPublisher;

    fn record(id: &str) -> Record {
        record_of_kind(id, "reading.process")
    }

    fn record_of_kind(id: &str, kind: &str) -> Record {
        let kind = Kind::parse(kind).unwrap();
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
        assert_eq!(kept(folder.path()), ["x", "large"]);
        assert_eq!(spool.status().borrow().unpublishable, 2);
    }

    /// The ids of all records in the files of the spool, those that wait first.
    fn kept(directory: &Path) -> Vec<String> {
        let inspection = Inspection::open(directory).unwrap();
        let ids = |(_, segment): (_, std::io::Result<garenne_spool::InspectedSegment>)| {
            segment.unwrap().records().map(|(_, record)| record.id).collect::<Vec<_>>()
        };
        inspection.segments().flat_map(ids).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_the_broker_returns_is_set_aside_after_a_while_and_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let returned = ["u1", "u2"].map(|id| record_of_kind(id, "image.resize"));
        let [first, second] = returned;
        let spool = filled(folder.path(), vec![record("a"), first, record("b")]).await;
        let publisher = MemoryPublisher::new();
        publisher.return_kind(Some("image.resize"));
        let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
        let error = drain.next_batch().await.unwrap_err();
        let expected = "no queue is bound to exchange \"garenne.tasks\" for routing key \"image.resize\"; it is set aside if this lasts for 10s";
        assert_eq!(error.to_string(), expected);
        assert_eq!(spool.status().borrow().records(), 3, "the topology may be restored meanwhile");
        let published = publisher.tasks().len();
        assert!(matches!(drain.next_batch().await, Err(DrainError::Returned(_))));
        assert_eq!(publisher.tasks().len(), published, "the others are not published again");
        sleep_until(Instant::now() + RETURN_GRACE).await;
        assert_eq!(drain.next_batch().await.unwrap(), 3);
        assert_eq!(ids(&publisher).last().unwrap(), "b");

        spool.append(vec![second, record("c")]).await.unwrap();
        assert_eq!(drain.next_batch().await.unwrap(), 2, "one wait for all tasks in the spool");
        assert_eq!(ids(&publisher).last().unwrap(), "c");
        assert_eq!(kept(folder.path()), ["u1", "u2"]);
        let status = spool.status().borrow().clone();
        assert_eq!((status.unpublishable, status.set_aside, status.records()), (2, 2, 0));
    }

    #[tokio::test]
    async fn a_batch_that_cannot_be_set_aside_is_not_published_again() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("spool");
        let foreign = Record { body: b"no task".to_vec(), ..record("x") };
        let spool = filled(&directory, vec![record("a"), foreign]).await;
        let publisher = MemoryPublisher::gated();
        let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
        let removed = async {
            publisher.received(1).await;
            std::fs::remove_dir_all(&directory).unwrap();
            publisher.confirm(10);
        };
        let (outcome, ()) = tokio::join!(drain.next_batch(), removed);
        assert!(matches!(outcome, Err(DrainError::Spool(SpoolError::Io { .. }))));
        assert!(matches!(drain.next_batch().await, Err(DrainError::Spool(_))));
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(drain.next_batch().await.unwrap(), 2);
        assert_eq!((ids(&publisher), kept(&directory)), (vec!["a".to_owned()], vec!["x".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_becomes_routable_in_time_is_published() {
        let folder = tempfile::tempdir().unwrap();
        let spool = filled(folder.path(), vec![record_of_kind("u", "image.resize")]).await;
        let publisher = MemoryPublisher::new();
        publisher.return_kind(Some("image.resize"));
        let mut drain = SpoolDrain::new(spool.clone(), publisher.clone(), None);
        assert!(matches!(drain.next_batch().await, Err(DrainError::Returned(_))));
        publisher.return_kind(None);
        assert_eq!(drain.next_batch().await.unwrap(), 1);
        assert_eq!((ids(&publisher), spool.status().borrow().set_aside), (vec!["u".to_owned()], 0));
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
