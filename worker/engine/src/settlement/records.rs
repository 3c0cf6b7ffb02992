//! Records of batches that leave their batch as messages of their own.
//!
//! A batch of a few hundred kilobytes has up to a thousand records, and the prefetch allows many batches. All their
//! copies at once would take many times the memory of the deliveries. So only as many records are copied at a time as
//! [`COPY_BYTES`] allows; the others wait as parts of their delivery.

use std::sync::Arc;

use garenne_protocol::task::Copied;
use tokio::sync::Semaphore;

use super::{InFlight, Settler};

/// Bytes of properties of records' copies that a worker holds at a time. Their bodies are in the deliveries.
pub(super) const COPY_BYTES: usize = 8 << 20;

/// The places of records that are copied at a time.
pub(crate) fn record_places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(COPY_BYTES / Copied::RECORD_BYTES))
}

impl Settler {
    /// Passes each record of a batch to `settle`, which publishes a copy of it. A record that could not begin when the
    /// channel died or the worker stopped waiting is requeued, and with it the batch. A task that is no batch needs no
    /// place.
    pub(crate) fn settle_each<R: Record>(
        self: &Arc<Self>,
        mut records: Vec<R>,
        settle: impl Fn(&Arc<Self>, R) + Send + 'static,
    ) {
        if records.len() <= 1 {
            return records.drain(..).for_each(|record| settle(self, record));
        }
        let this = Arc::clone(self);
        self.in_background("records", async move {
            for mut record in records {
                let place = tokio::select! {
                    biased;
                    place = Arc::clone(&this.record_places).acquire_owned() => place,
                    () = this.force_close.cancelled() => return,
                };
                if !record.task().delivery.alive() {
                    return;
                }
                record.task().delivery.hold(place.expect("the semaphore is never closed"));
                settle(&this, record);
            }
        });
    }
}

/// A record, and perhaps what is known of it.
pub(crate) trait Record: Send + 'static {
    /// The record as a task.
    fn task(&mut self) -> &mut InFlight;
}

impl Record for InFlight {
    fn task(&mut self) -> &mut InFlight {
        self
    }
}

impl<T: Send + 'static> Record for (InFlight, T) {
    fn task(&mut self) -> &mut InFlight {
        &mut self.0
    }
}
