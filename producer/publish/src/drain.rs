//! Sends or forwards what a spool contains, in order.

use std::{
    collections::VecDeque,
    fmt::Display,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_amqp::PublishError;
use garenne_common::{
    backoff::Backoff,
    supervise::{self, TaskHandle},
};
use garenne_protocol::task::NewTask;
use garenne_spool::{Position, Record, Spool, SpoolError, task::task_of};
use thiserror::Error;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::task_sender::TaskSender;

/// Most records that are published and acknowledged together.
const BATCH: usize = 500;
/// Most bytes of them, unless the first record is larger.
const BATCH_BYTES: usize = 1 << 20;
/// With a rate, batches are so small that there are this many a second.
const BATCHES_PER_SECOND: f64 = 20.0;
/// How long tasks that the broker returns are published again before they are set aside. Queues may be declared and bound
/// meanwhile, such as after a broker was replaced.
const RETURN_GRACE: Duration = Duration::from_secs(10);

/// How often the segments that are set aside are counted again.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(10);

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

/// Forwards tasks to a central gateway.
pub trait Forward: Send + Sync {
    /// Resolves when the central gateway has answered for tasks from the front: all of them, or as many as it takes at
    /// once. If it fails, any of the tasks may not be stored.
    fn forward<'t>(&'t self, tasks: &'t [NewTask]) -> BoxFuture<'t, Result<Answered, ForwardError>>;
}

/// What a central gateway answered.
pub struct Answered {
    /// How many tasks from the front it answered for, at least one. The central broker has confirmed those that are not
    /// in `rejected`.
    pub tasks: usize,
    /// Those that it refuses for good, by their index and with the reason.
    pub rejected: Vec<(usize, String)>,
}

/// Why no task of a request is known to be stored. Sending all of them again has no second effect.
#[derive(Debug, Error)]
#[error("{problem}")]
pub struct ForwardError {
    /// The reason.
    pub problem: String,
    /// Whether it lasts until an operator changes a setting or a file of this gateway or the central one.
    pub needs_operator: bool,
}

/// Where a spool is drained to.
enum Target {
    Broker(Arc<dyn TaskSender>),
    Gateway(Box<dyn Forward>),
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
    confirmed: u64,
}

/// A batch that was read and is not acknowledged.
struct OpenBatch {
    start: Position,
    end: Position,
    /// How many records were read.
    records: usize,
    unconfirmed: VecDeque<(NewTask, Record)>,
    /// Records that are to be set aside.
    rejected: Vec<Record>,
}

impl SpoolDrain {
    /// Drains `spool` with `sender`, at most `rate` records per second.
    pub fn new(spool: Spool, sender: Arc<dyn TaskSender>, rate: Option<f64>) -> Self {
        Self::to(Target::Broker(sender), spool, rate)
    }

    /// Drains `spool` to a central gateway with at most `rate` records per second.
    pub(crate) fn forwarding(spool: Spool, forwarder: Box<dyn Forward>, rate: Option<f64>) -> Self {
        Self::to(Target::Gateway(forwarder), spool, rate)
    }

    fn to(target: Target, spool: Spool, rate: Option<f64>) -> Self {
        Self {
            spool,
            target,
            rate: rate.unwrap_or(f64::INFINITY),
            due: Instant::now(),
            returned_at: None,
            open_batch: None,
            confirmed: 0,
        }
    }

    /// How many records the broker or the central gateway has confirmed in complete batches.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Starts to drain whenever the spool has content, on the current runtime, and notices when an operator removes what
    /// is set aside. Ends when `stop` is cancelled, after the batch in progress.
    pub fn start(self, stop: CancellationToken) -> TaskHandle<()> {
        supervise::restarting("drain-spool", (self, stop), run).spawn()
    }

    /// Drains the spool whenever it has content. Ends when `stop` is cancelled, after the batch in progress, or when the
    /// spool is closed.
    async fn run(&mut self, stop: CancellationToken) {
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
                        DrainError::Forward(cause) if cause.needs_operator => {
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
    /// seconds after the first one. If it fails, the batch is not acknowledged, and the next call continues with its
    /// tasks that are not confirmed.
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
        if let Err(error) = self.send_batch(&mut batch).await {
            self.open_batch = Some(batch);
            return Err(error);
        }
        if let Err(error) = self.spool.ack(batch.end).await {
            tracing::warn!(%error, "tasks of the spool are confirmed, but may be published again after a restart");
        }
        self.confirmed += (batch.records - batch.rejected.len()) as u64;
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
        let (unconfirmed, rejected) = (VecDeque::new(), Vec::new());
        let mut batch =
            OpenBatch { start, end: read.end, records: read.records.len(), unconfirmed, rejected };
        for record in read.records {
            match task_of(record.clone(), now) {
                Ok(task) => batch.unconfirmed.push_back((task, record)),
                Err(error) => batch.reject(record, &error),
            }
        }
        Ok(Some(batch))
    }

    /// Publishes the tasks of a batch, and sets aside those that can never be published.
    async fn send_batch(&mut self, batch: &mut OpenBatch) -> Result<(), DrainError> {
        while !batch.unconfirmed.is_empty() {
            let tasks: Vec<NewTask> = batch.unconfirmed.iter().map(|(task, _)| task.clone()).collect();
            match &self.target {
                Target::Broker(sender) => match sender.send(tasks).await {
                    Ok(()) => batch.unconfirmed.clear(),
                    // The error does not tell which task it is.
                    Err(PublishError::TooLarge { .. } | PublishError::Unroutable { .. }) => {
                        let sender = Arc::clone(sender);
                        self.send_each(&*sender, batch).await?;
                    }
                    Err(error) => return Err(error.into()),
                },
                Target::Gateway(forwarder) => batch.confirm(forwarder.forward(&tasks).await?),
            }
        }
        if !batch.rejected.is_empty() {
            self.spool.set_aside(batch.rejected.clone()).await?;
        }
        Ok(())
    }

    /// Sends the tasks one by one.
    async fn send_each(&mut self, sender: &dyn TaskSender, batch: &mut OpenBatch) -> Result<(), DrainError> {
        let mut returned = None;
        for _ in 0..batch.unconfirmed.len() {
            let Some((task, record)) = batch.unconfirmed.pop_front() else { break };
            match sender.send(vec![task.clone()]).await {
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

fn run((drain, stop): &mut (SpoolDrain, CancellationToken)) -> BoxFuture<'_, ()> {
    let spool = drain.spool.clone();
    async move {
        tokio::select! {
            () = drain.run(stop.clone()) => {}
            () = recount_set_aside(spool) => {}
        }
    }
    .boxed()
}

/// Runs for ever.
async fn recount_set_aside(spool: Spool) {
    loop {
        sleep(RECOUNT_INTERVAL).await;
        if spool.status().borrow().set_aside > 0
            && let Err(error) = spool.recount_set_aside().await
        {
            tracing::warn!(%error, "the size of what is set aside may be outdated");
        }
    }
}

impl OpenBatch {
    /// The tasks that were answered for are confirmed, except those that are rejected.
    fn confirm(&mut self, Answered { tasks, rejected }: Answered) {
        let records: Vec<_> = self.unconfirmed.drain(..tasks).map(|(_, record)| record).collect();
        for (index, reason) in rejected {
            self.reject(records[index].clone(), &reason);
        }
    }

    fn reject(&mut self, record: Record, error: &dyn Display) {
        let id = &record.id;
        tracing::error!(id, %error, "a record of the spool cannot be published and is set aside");
        self.rejected.push(record);
    }
}

#[cfg(test)]
mod tests;
