//! Records of batches that leave their batch as messages of their own.
//!
//! A batch of a few hundred kilobytes has up to a thousand records, and the prefetch allows many batches. All their
//! copies at once would take many times the memory of the deliveries. So only as many records are copied at a time as
//! [`COPY_BYTES`] allows; the others wait as parts of their delivery.

use std::{
    future::{IntoFuture, ready},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use garenne_common::{supervise::isolated, telemetry::metrics::TaskOutcome};
use garenne_pool::Ending;
use garenne_protocol::{
    settlement::Settlement,
    task::{Copied, Envelope},
};
use tokio::sync::Semaphore;

use super::Settler;
use crate::{
    attempt::{AttemptEnd, Outcome},
    batch::{Batch, BatchEnd},
    in_flight::InFlight,
    registry::RegistryEntry,
};

/// Bytes of properties of records' copies that a worker holds at a time. Their bodies are in the deliveries.
pub(super) const COPY_BYTES: usize = 8 << 20;

/// The places of records that are copied at a time.
pub(crate) fn record_places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(COPY_BYTES / Copied::RECORD_BYTES))
}

impl Settler {
    /// Settles each record by its own end, or the batch as a whole. `deadline` is that of the batch.
    pub(crate) fn settle_batch(
        self: &Arc<Self>,
        task: InFlight,
        batch: &Batch,
        entry: &Arc<RegistryEntry>,
        ending: Ending<()>,
        deadline: Duration,
    ) {
        match batch.end(ending) {
            BatchEnd::Apart(ends) => {
                let (mut succeeded, mut leaving) = (Vec::new(), Vec::new());
                for (mut record, end) in task.into_tasks().into_iter().zip(ends) {
                    if end.counted_as == Some(TaskOutcome::Timeout) {
                        // As a message of its own the record would be a short task without a deadline, and
                        // could hang forever.
                        let timeout = Some(record.envelope.timeout.unwrap_or(deadline));
                        record.envelope = Arc::new(Envelope { timeout, ..Envelope::clone(&record.envelope) });
                    }
                    match end.outcome {
                        Outcome::Done { .. } if self.sink_buffer.is_empty() => {
                            self.settle(record, entry, end);
                        }
                        Outcome::Done { .. } => succeeded.push((record, end)),
                        _ => leaving.push((record, end)),
                    }
                }
                if !succeeded.is_empty() {
                    self.settle_together(succeeded, entry);
                }
                if !leaving.is_empty() {
                    let (this, entry) = (Arc::clone(self), Arc::clone(entry));
                    self.in_background("records", async move {
                        this.for_each_record(leaving, |record, end| this.settle(record, &entry, end)).await;
                    });
                }
            }
            BatchEnd::HandBack { executed } => {
                (0..executed).for_each(|_| entry.metrics.counted(TaskOutcome::Interrupted));
                batch.records.iter().for_each(|record| record.span.end(Settlement::Requeued, None));
                task.hand_back();
            }
            BatchEnd::Abandon => {
                entry.metrics.counted(TaskOutcome::Interrupted);
                batch.records.iter().for_each(|record| record.span.end(Settlement::Abandoned, None));
                task.abandon();
            }
        }
    }

    /// Settles records that succeeded. The sinks answer for many at a time, so one background task continues all of them.
    fn settle_together(self: &Arc<Self>, records: Vec<(InFlight, AttemptEnd)>, entry: &Arc<RegistryEntry>) {
        records.iter().for_each(|(record, end)| end.count(&record.span, entry));
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.poll_then_spawn(async move {
            let finish =
                |(record, end)| isolated("settlement", this.finish(record, &entry, end)).into_future();
            let finishing: FuturesUnordered<_> = records.into_iter().map(finish).collect();
            finishing.for_each(|_| ready(())).await;
        });
    }

    /// Settles a task, or each record of a batch as a task of its own.
    pub(crate) async fn settle_each<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        task: InFlight,
        settle: impl Fn(Arc<Self>, InFlight) -> F,
    ) {
        if task.batch.is_none() {
            return settle(Arc::clone(self), task).await;
        }
        let records = task.into_tasks().into_iter().map(|record| (record, ())).collect();
        let settle = |record, ()| self.in_background("record", settle(Arc::clone(self), record));
        self.for_each_record(records, settle).await;
    }

    /// Passes each record of a batch to `settle`, which begins to copy it. A record that could not begin when the channel
    /// died or the worker stopped waiting is requeued, and with it the batch.
    pub(super) async fn for_each_record<T>(&self, records: Vec<(InFlight, T)>, settle: impl Fn(InFlight, T)) {
        for (mut record, known) in records {
            let place = tokio::select! {
                biased;
                place = Arc::clone(&self.record_places).acquire_owned() => place,
                () = self.force_close.cancelled() => return,
            };
            if !record.delivery.channel_is_open() {
                return;
            }
            record.delivery.hold(place.expect("the semaphore is never closed"));
            settle(record, known);
        }
    }
}
