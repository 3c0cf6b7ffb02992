//! Sends several requests concurrently.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use garenne_common::exit::Exit;
use garenne_protocol::sensor::Reading;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{
    Destination, delivery_counts::DeliveryCounts, receipt_file::ReceiptFile, retrying_sender::RetryingSender,
};

/// Limits of a [`DeliveryQueue`].
#[derive(Clone, Debug)]
pub struct DeliveryConfig {
    /// Requests in flight at once, 1 or more.
    pub in_flight: usize,
    /// How long a request is repeated before it is given up.
    pub retry_for: Duration,
}

/// Sends requests to one destination, several at once.
pub struct DeliveryQueue {
    sender: Arc<RetryingSender>,
    destination: Arc<dyn Destination>,
    permits: Arc<Semaphore>,
    in_flight: TaskTracker,
}

impl DeliveryQueue {
    /// Sends to `destination`, and writes a receipt per confirmed reading to `receipts`.
    pub fn new(
        destination: Arc<dyn Destination>,
        receipts: Option<ReceiptFile>,
        config: DeliveryConfig,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(config.in_flight.max(1)));
        let sender = Arc::new(RetryingSender::new(receipts, config.retry_for));
        Self { sender, destination, permits, in_flight: TaskTracker::new() }
    }

    /// The counters.
    pub fn counts(&self) -> Arc<DeliveryCounts> {
        Arc::clone(self.sender.counts())
    }

    /// Starts a request, after waiting until fewer than `in_flight` are open. Returns false if no request can succeed
    /// any more; the readings are then counted as undelivered.
    pub async fn push(&self, readings: Vec<Reading>) -> bool {
        let permit = tokio::select! {
            // Biased, because a failure releases a permit at the same time.
            biased;
            () = self.sender.failed().cancelled() => {
                self.counts().undelivered.fetch_add(readings.len() as u64, Relaxed);
                return false;
            }
            permit = Arc::clone(&self.permits).acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let (sender, destination) = (Arc::clone(&self.sender), Arc::clone(&self.destination));
        self.in_flight.spawn(async move {
            sender.send(&*destination, readings).await;
            drop(permit);
        });
        !self.sender.failed().is_cancelled()
    }

    /// Waits for all open requests. Returns the first failure, if any.
    pub async fn finish(self) -> Option<(String, Exit)> {
        self.in_flight.close();
        self.in_flight.wait().await;
        self.sender.failure()
    }
}

#[cfg(test)]
mod tests;
