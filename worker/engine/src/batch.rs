//! Batches: several tasks of one kind in one message.
//!
//! A batch takes one place in the pool, and its records run one after another. Each record comes to an
//! [`AttemptEnd`] of its own. A record that does not succeed leaves the batch as a message of its own. The batch
//! is acked once each record is stored or has left.
//!
//! - If a shutdown or a dead channel interrupts the batch, it goes back to the broker as a whole, and the results
//!   so far are discarded. None of them has been stored yet.
//! - If the batch's deadline passes, the record that is running has spent an attempt. Earlier records keep their
//!   ends, and later ones continue as messages of their own.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use garenne_pool::{self as pool, Cause, Ending};
use garenne_protocol::task::{BadBatch, BatchRecord, Envelope, read_batch};

use crate::{
    consumer::ChannelGeneration,
    execute::{Attempt, AttemptEnd, Outcome},
    fleet::Directives,
    handler::{BatchRecords, WorkerContext},
    registry::Entry,
    spans::{AttemptSpan, Spans},
};

/// A task of a batch.
pub(crate) struct Record {
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) payload: Bytes,
    pub(crate) span: AttemptSpan,
}

impl Record {
    /// Reads the records of a batch. Their payloads share the memory of `body`.
    pub(crate) fn read_all(
        batch: &Envelope,
        body: &Bytes,
        spans: &Arc<Spans>,
    ) -> Result<Vec<Self>, BadBatch> {
        let records = read_batch(body)?;
        let read = |record: &BatchRecord<'_>| {
            let mut envelope = record.envelope(batch);
            spans.ensure_trace(&mut envelope);
            let envelope = Arc::new(envelope);
            let span = spans.attempt(&envelope);
            Self { envelope, payload: body.slice_ref(record.payload), span }
        };
        Ok(records.iter().map(read).collect())
    }
}

/// The ends of the records that have run, in order.
///
/// Shared between the execution and the completion of a batch: if a record hangs and the pool gives up the batch,
/// the ends of the earlier records are not lost.
#[derive(Clone, Default)]
pub(crate) struct AttemptEnds(Arc<Mutex<Vec<AttemptEnd>>>);

impl AttemptEnds {
    fn push(&self, end: AttemptEnd) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(end);
    }

    /// Takes the ends. The end of a record that was given up and returns later is ignored.
    fn take(&self) -> Vec<AttemptEnd> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The execution of a batch in the pool.
pub(crate) struct BatchAttempt {
    pub(crate) entry: Arc<Entry>,
    pub(crate) worker: Arc<str>,
    pub(crate) worker_context: WorkerContext,
    pub(crate) records: Arc<[Record]>,
    /// The channel that the batch was delivered on.
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) directives: Arc<Directives>,
    pub(crate) ends: AttemptEnds,
}

impl BatchAttempt {
    /// Runs the records in order and records their ends. A cancellation takes effect between two records, because
    /// records are short tasks, which cannot be cancelled.
    pub(crate) async fn execute(self, cx: pool::TaskContext) {
        let bodies = self.records.iter().map(|it| (it.envelope.content_type, it.payload.clone())).collect();
        let batch_records = Arc::new(BatchRecords::new(bodies));
        for (index, record) in self.records.iter().enumerate() {
            if cx.cause().is_some() || !self.generation.alive() {
                break;
            }
            self.ends.push(self.execute_record(record, (Arc::clone(&batch_records), index)).await);
            // Handlers that never wait would block other tasks of this runtime thread for the whole batch.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn execute_record(&self, record: &Record, batch: (Arc<BatchRecords>, usize)) -> AttemptEnd {
        let envelope = &record.envelope;
        let attempt = Attempt {
            entry: Arc::clone(&self.entry),
            envelope: Arc::clone(envelope),
            worker: Arc::clone(&self.worker),
            worker_context: WorkerContext { batch: Some(batch), ..self.worker_context.clone() },
            body: record.payload.clone(),
            generation: Arc::clone(&self.generation),
            directives: Arc::clone(&self.directives),
            span: record.span.clone(),
        };
        let cx = pool::TaskContext::short(envelope.id.shared());
        let ending = match AssertUnwindSafe(attempt.execute(cx)).catch_unwind().await {
            Ok(output) => Ending::Finished { output, told: None },
            Err(panic) => Ending::Panicked { message: pool::panic_message(panic) },
        };
        AttemptEnd::of(ending)
    }
}

/// What is to become of a batch.
pub(crate) enum BatchEnd {
    /// Each record is settled by its own end.
    Apart(Vec<AttemptEnd>),
    /// The batch goes back to the broker as a whole. `executed` records had run.
    HandBack { executed: usize },
    /// A record ignores its cancellation and is still running at shutdown. The delivery stays unsettled until the
    /// connection closes, when the broker requeues it.
    Abandon,
}

impl BatchEnd {
    /// Derives the end of a batch of `records` records from the way in which the pool ended it. `ended` holds the
    /// ends of the records that had run.
    pub(crate) fn of(ending: Ending<()>, records: usize, ended: &AttemptEnds) -> Self {
        let mut ends = ended.take();
        let cause = match ending {
            Ending::Finished { told, .. } => told,
            Ending::NotStarted { cause } => Some(cause),
            Ending::GaveUp { cause: Cause::Shutdown, .. } => return Self::Abandon,
            // The first record without an end hangs. It ends like a task of its own that is given up.
            Ending::GaveUp { cause, stuck } => {
                if ends.len() < records {
                    ends.push(AttemptEnd::of(Ending::GaveUp { cause, stuck }));
                }
                Some(cause)
            }
            Ending::Panicked { message } => {
                let panicked = || AttemptEnd::of(Ending::Panicked { message: message.clone() });
                ends.resize_with(records, panicked);
                return Self::Apart(ends);
            }
        };
        let executed = ends.len();
        let missing = records - executed;
        let is_handed_back = |end: &AttemptEnd| matches!(end.outcome, Outcome::HandBack | Outcome::Abandon);
        let end_of_missing = match cause {
            // The channel died, or the worker stops.
            None | Some(Cause::Shutdown) if missing > 0 => return Self::HandBack { executed },
            _ if ends.iter().any(is_handed_back) => return Self::HandBack { executed },
            // The remaining records continue as messages of their own, so that slow records do not delay them.
            Some(Cause::Deadline) => || AttemptEnd::not_started(Outcome::Defer { wait: Duration::ZERO }),
            _ => || AttemptEnd::of(Ending::NotStarted { cause: Cause::Stopped }),
        };
        ends.extend(std::iter::repeat_with(end_of_missing).take(missing));
        Self::Apart(ends)
    }
}

/// The batches that wait or run in this worker. Finds a record by its id.
#[derive(Default)]
pub(crate) struct RunningBatches(Mutex<Vec<Weak<[Record]>>>);

impl RunningBatches {
    /// Adds a batch until its records are dropped. The prefetch bounds the number of batches.
    pub(crate) fn add(&self, records: &Arc<[Record]>) {
        let mut batches = self.batches();
        batches.retain(|batch| batch.strong_count() > 0);
        batches.push(Arc::downgrade(records));
    }

    /// Whether a batch contains a record with this id.
    pub(crate) fn contains_record(&self, id: &str) -> bool {
        let batches: Vec<_> = self.batches().iter().filter_map(Weak::upgrade).collect();
        batches.iter().any(|batch| batch.iter().any(|record| record.envelope.id.as_str() == id))
    }

    fn batches(&self) -> MutexGuard<'_, Vec<Weak<[Record]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
