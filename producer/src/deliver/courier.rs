//! Batches under way: several at once, each repeated until it is taken or time is up.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use garenne_common::{backoff::Backoff, exit::Exit};
use garenne_protocol::sensor::Reading;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Destination, Receipts, Setback};

/// Patience and width of a [`Courier`].
#[derive(Clone, Debug)]
pub struct CourierConfig {
    /// Batches under way at once, 1 or more.
    pub in_flight: usize,
    /// How long one batch is repeated before it is given up.
    pub retry_for: Duration,
}

/// What became of the readings so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Receipted.
    pub delivered: AtomicU64,
    /// Refused for what they are.
    pub refused: AtomicU64,
    /// Given up: nobody knows whether they arrived.
    pub undelivered: AtomicU64,
    /// Batches sent once more.
    pub retries: AtomicU64,
}

/// Delivers batches to one destination, several at once.
pub struct Courier {
    carrier: Arc<Carrier>,
    destination: Arc<dyn Destination>,
    places: Arc<Semaphore>,
    under_way: TaskTracker,
}

impl Courier {
    /// Delivers to `destination`, with a receipt per reading where `receipts` are wanted.
    pub fn new(destination: Arc<dyn Destination>, receipts: Option<Receipts>, config: CourierConfig) -> Self {
        let places = Arc::new(Semaphore::new(config.in_flight.max(1)));
        let carrier = Arc::new(Carrier::new(receipts, config.retry_for));
        Self { carrier, destination, places, under_way: TaskTracker::new() }
    }

    /// The counters.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.carrier.tally)
    }

    /// Sends a batch on its way, waiting while enough are under way. `false` when going on is
    /// pointless; the batch then counts as undelivered.
    pub async fn send(&self, batch: Vec<Reading>) -> bool {
        let place = tokio::select! {
            // First, for a failure frees a place at the same moment.
            biased;
            () = self.carrier.broken.cancelled() => {
                self.carrier.tally.undelivered.fetch_add(batch.len() as u64, Relaxed);
                return false;
            }
            place = Arc::clone(&self.places).acquire_owned() => place.expect("the semaphore is never closed"),
        };
        let (carrier, destination) = (Arc::clone(&self.carrier), Arc::clone(&self.destination));
        self.under_way.spawn(async move {
            carrier.carry(&*destination, batch).await;
            drop(place);
        });
        !self.carrier.broken.is_cancelled()
    }

    /// Waits for everything under way; answers why it is broken, if it is.
    pub async fn finish(self) -> Option<(String, Exit)> {
        self.under_way.close();
        self.under_way.wait().await;
        self.carrier.failure()
    }
}

/// Carries batches, each until it is taken or time is up.
pub struct Carrier {
    receipts: Option<Receipts>,
    retry_for: Duration,
    tally: Arc<Tally>,
    /// Cancelled when going on is pointless.
    broken: CancellationToken,
    failure: OnceLock<(String, Exit)>,
}

impl Carrier {
    /// Repeats each batch for at most `retry_for`.
    pub fn new(receipts: Option<Receipts>, retry_for: Duration) -> Self {
        let (tally, broken) = (Arc::default(), CancellationToken::new());
        Self { receipts, retry_for, tally, broken, failure: OnceLock::new() }
    }

    /// The counters.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Cancelled when going on is pointless.
    pub fn broken(&self) -> &CancellationToken {
        &self.broken
    }

    /// Why going on is pointless, if it is.
    pub fn failure(&self) -> Option<(String, Exit)> {
        self.failure.get().cloned()
    }

    /// Delivers a batch, or counts what of it was not.
    pub async fn carry(&self, destination: &dyn Destination, mut batch: Vec<Reading>) {
        let give_up = Instant::now() + self.retry_for;
        let mut backoff = Backoff::default();
        while !batch.is_empty() {
            let outcome = tokio::select! {
                biased;
                () = self.broken.cancelled() => break,
                outcome = destination.deliver(&batch) => outcome,
            };
            match outcome {
                Ok(ids) => {
                    self.tally.delivered.fetch_add(batch.len() as u64, Relaxed);
                    if let Some(Err(error)) = self.receipts.as_ref().map(|file| file.append(&batch, &ids)) {
                        self.fail(format!("receipts cannot be written: {error}"), Exit::Failed);
                    }
                    return;
                }
                Err(Setback::Reading { index, why }) => {
                    let reading = batch.remove(index.min(batch.len() - 1));
                    self.tally.refused.fetch_add(1, Relaxed);
                    tracing::warn!(device = %reading.device, metric = %reading.metric, time = %reading.time, why, "reading refused");
                }
                Err(Setback::Never { why, exit }) => {
                    self.fail(why, exit);
                    break;
                }
                Err(Setback::Again { why, after }) => {
                    let wait = backoff.next_wait().max(after.unwrap_or_default());
                    if Instant::now() + wait >= give_up {
                        self.fail(format!("given up after {:?}: {why}", self.retry_for), Exit::Failed);
                        break;
                    }
                    self.tally.retries.fetch_add(1, Relaxed);
                    tracing::info!(why, ?wait, "not taken, sent again");
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.broken.cancelled() => break,
                    }
                }
            }
        }
        self.tally.undelivered.fetch_add(batch.len() as u64, Relaxed);
    }

    fn fail(&self, why: String, exit: Exit) {
        // The first failure explains the others.
        let _ = self.failure.set((why, exit));
        self.broken.cancel();
    }
}

#[cfg(test)]
mod tests;
