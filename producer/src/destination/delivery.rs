//! Delivers readings: repeats requests until they are confirmed, counts, and writes receipts.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use garenne_common::{
    backoff::Backoff,
    exit::{Exit, Failure},
    lock::lock,
    supervise,
};
use garenne_protocol::{
    sensor::{Reading, Timestamp},
    task::TaskId,
};
use serde::Serialize;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Destination, SendError};
use crate::args::SendingArgs;

/// Counters of sent readings.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DeliveryCounts {
    /// Readings that were confirmed, or stored in the spool.
    pub(crate) delivered: AtomicU64,
    /// Readings that were refused as invalid.
    pub(crate) refused: AtomicU64,
    /// Readings that were given up. Some of them may be stored.
    pub(crate) undelivered: AtomicU64,
    /// Requests that were sent again.
    pub(crate) retries: AtomicU64,
}

impl DeliveryCounts {
    /// Confirmed readings per second.
    pub(crate) fn per_second(&self, elapsed: Duration) -> f64 {
        self.delivered.load(Relaxed) as f64 / elapsed.as_secs_f64().max(1e-3)
    }

    /// Whether all readings were confirmed.
    pub(crate) fn complete(&self) -> bool {
        self.refused.load(Relaxed) + self.undelivered.load(Relaxed) == 0
    }
}

/// A file with one JSON line per confirmed reading, for audits.
struct ReceiptFile(Mutex<File>);

#[derive(Serialize)]
struct Receipt<'a> {
    id: &'a str,
    device: &'a str,
    metric: &'a str,
    time: Timestamp,
}

impl ReceiptFile {
    /// Opens `path` for appending, or creates it.
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.map(|file| Self(Mutex::new(file))).map_err(|error| {
            Failure::new(Exit::Failed, format!("receipts file {} cannot be written: {error}", path.display()))
        })
    }

    /// Appends one line per reading in a single write, so that a reader does not see partial lines.
    fn append(&self, readings: &[Reading], ids: &[TaskId]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(readings.len() * 128);
        for (reading, id) in readings.iter().zip(ids) {
            let Reading { device, metric, time, .. } = reading;
            let receipt = Receipt { id: id.as_str(), device, metric, time: *time };
            serde_json::to_writer(&mut lines, &receipt)?;
            lines.push(b'\n');
        }
        lock(&self.0).write_all(&lines)
    }
}

/// Sends readings and repeats each request until it is confirmed or its time is up.
pub(crate) struct RetryingSender {
    receipts: Option<ReceiptFile>,
    retry_for: Duration,
    pub(crate) counts: DeliveryCounts,
    /// Cancelled at the first failure after which no request can succeed.
    pub(crate) failed: CancellationToken,
    /// Cancelled at a stop: no request is repeated any more.
    pub(crate) stopped: CancellationToken,
    failure: OnceLock<Failure>,
}

impl RetryingSender {
    /// Repeats each request for at most `--retry-for`, and writes a receipt per confirmed reading to `--receipts`.
    pub(crate) fn open(args: &SendingArgs) -> Result<Arc<Self>, Failure> {
        let receipts = args.receipts.as_deref().map(ReceiptFile::open).transpose()?;
        Ok(Self::new(receipts, args.retry_for))
    }

    fn new(receipts: Option<ReceiptFile>, retry_for: Duration) -> Arc<Self> {
        let (failed, stopped) = (CancellationToken::new(), CancellationToken::new());
        let (counts, failure) = (DeliveryCounts::default(), OnceLock::new());
        Arc::new(Self { receipts, retry_for, counts, failed, stopped, failure })
    }

    /// The first failure, if any.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    /// Sends the readings to `destination` in one request. Returns when they are confirmed or given up.
    pub(crate) async fn send(&self, destination: &dyn Destination, mut readings: Vec<Reading>) {
        let deadline = Instant::now() + self.retry_for;
        let mut backoff = Backoff::default();
        while !readings.is_empty() {
            let outcome = tokio::select! {
                biased;
                () = self.failed.cancelled() => break,
                outcome = destination.send(&readings) => outcome,
            };
            match outcome {
                Ok(ids) => {
                    self.counts.delivered.fetch_add(readings.len() as u64, Relaxed);
                    if let Some(Err(error)) = self.receipts.as_ref().map(|file| file.append(&readings, &ids))
                    {
                        let problem = format!("receipts cannot be written: {error}");
                        self.fail(Failure::new(Exit::Failed, problem));
                    }
                    return;
                }
                Err(SendError::InvalidReading { index, reason }) => {
                    let reading = readings.remove(index.min(readings.len() - 1));
                    self.counts.refused.fetch_add(1, Relaxed);
                    tracing::warn!(device = %reading.device, metric = %reading.metric, time = %reading.time, reason, "reading refused");
                }
                Err(SendError::Fatal(failure)) => {
                    self.fail(failure);
                    break;
                }
                Err(SendError::Retry { reason, retry_after }) => {
                    let wait = backoff.next_wait().max(retry_after.unwrap_or_default());
                    if Instant::now() + wait >= deadline {
                        let problem = format!("given up after {:?}: {reason}", self.retry_for);
                        self.fail(Failure::new(Exit::Failed, problem));
                        break;
                    }
                    tracing::info!(reason, ?wait, "readings not accepted, retrying");
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.failed.cancelled() => break,
                        () = self.stopped.cancelled() => {
                            // The others may still be confirmed.
                            let problem = format!("interrupted, and not sent again: {reason}");
                            let _ = self.failure.set(Failure::new(Exit::Failed, problem));
                            break;
                        }
                    }
                    self.counts.retries.fetch_add(1, Relaxed);
                }
            }
        }
        self.counts.undelivered.fetch_add(readings.len() as u64, Relaxed);
    }

    fn fail(&self, failure: Failure) {
        // Only the first failure is kept; later ones are often its consequences.
        let _ = self.failure.set(failure);
        self.failed.cancel();
    }
}

/// Sends requests to one destination, several at once.
pub(crate) struct DeliveryQueue {
    sender: Arc<RetryingSender>,
    destination: Arc<dyn Destination>,
    permits: Arc<Semaphore>,
    requests: TaskTracker,
}

impl DeliveryQueue {
    /// Sends to `destination`, at most `in_flight` requests at once.
    pub(crate) fn new(
        sender: Arc<RetryingSender>,
        destination: Arc<dyn Destination>,
        in_flight: usize,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(in_flight));
        Self { sender, destination, permits, requests: TaskTracker::new() }
    }

    /// Starts a request, after waiting until fewer than `in_flight` are open. Returns false if no request can succeed
    /// any more; the readings are then counted as undelivered.
    pub(crate) async fn push(&self, readings: Vec<Reading>) -> bool {
        let permit = tokio::select! {
            // Biased, because a failure releases a permit at the same time.
            biased;
            () = self.sender.failed.cancelled() => {
                self.sender.counts.undelivered.fetch_add(readings.len() as u64, Relaxed);
                return false;
            }
            permit = Arc::clone(&self.permits).acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let (sender, destination) = (Arc::clone(&self.sender), Arc::clone(&self.destination));
        let request = async move {
            sender.send(&*destination, readings).await;
            drop(permit);
        };
        supervise::isolated("delivery", request).spawn_in(&self.requests).detach();
        !self.sender.failed.is_cancelled()
    }

    /// Waits for all open requests.
    pub(crate) async fn finish(self) {
        self.requests.close();
        self.requests.wait().await;
    }
}

#[cfg(test)]
mod tests;
