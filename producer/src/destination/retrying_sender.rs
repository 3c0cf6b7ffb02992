//! Sends readings again until they are confirmed.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    time::Duration,
};

use garenne_common::backoff::Backoff;
use garenne_common::exit::Exit;
use garenne_protocol::sensor::Reading;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Destination, SendError, delivery_counts::DeliveryCounts, receipt_file::ReceiptFile};

/// Sends readings and repeats each request until it is confirmed or its time is up.
pub struct RetryingSender {
    receipts: Option<ReceiptFile>,
    retry_for: Duration,
    counts: Arc<DeliveryCounts>,
    /// Cancelled at the first failure that ends the program.
    failed: CancellationToken,
    failure: OnceLock<(String, Exit)>,
}

impl RetryingSender {
    /// Repeats each request for at most `retry_for`, and writes a receipt per confirmed reading to `receipts`.
    pub fn new(receipts: Option<ReceiptFile>, retry_for: Duration) -> Self {
        let (counts, failed) = (Arc::default(), CancellationToken::new());
        Self { receipts, retry_for, counts, failed, failure: OnceLock::new() }
    }

    /// The counters.
    pub fn counts(&self) -> &Arc<DeliveryCounts> {
        &self.counts
    }

    /// Cancelled at the first failure after which no request can succeed.
    pub fn failed(&self) -> &CancellationToken {
        &self.failed
    }

    /// The first failure: its reason and the exit code.
    pub fn failure(&self) -> Option<(String, Exit)> {
        self.failure.get().cloned()
    }

    /// Sends the readings to `destination` in one request. Returns when they are confirmed or given up.
    pub async fn send(&self, destination: &dyn Destination, mut readings: Vec<Reading>) {
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
                        self.fail(format!("receipts cannot be written: {error}"), Exit::Failed);
                    }
                    return;
                }
                Err(SendError::InvalidReading { index, reason }) => {
                    let reading = readings.remove(index.min(readings.len() - 1));
                    self.counts.refused.fetch_add(1, Relaxed);
                    tracing::warn!(device = %reading.device, metric = %reading.metric, time = %reading.time, reason, "reading refused");
                }
                Err(SendError::Fatal { reason, exit }) => {
                    self.fail(reason, exit);
                    break;
                }
                Err(SendError::Retry { reason, retry_after }) => {
                    let wait = backoff.next_wait().max(retry_after.unwrap_or_default());
                    if Instant::now() + wait >= deadline {
                        self.fail(format!("given up after {:?}: {reason}", self.retry_for), Exit::Failed);
                        break;
                    }
                    self.counts.retries.fetch_add(1, Relaxed);
                    tracing::info!(reason, ?wait, "readings not accepted, retrying");
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.failed.cancelled() => break,
                    }
                }
            }
        }
        self.counts.undelivered.fetch_add(readings.len() as u64, Relaxed);
    }

    fn fail(&self, reason: String, exit: Exit) {
        // Only the first failure is kept; later ones are often its consequences.
        let _ = self.failure.set((reason, exit));
        self.failed.cancel();
    }
}
