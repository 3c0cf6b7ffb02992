//! Batches: several tasks of one kind in one message.
//!
//! A batch takes one place in the pool, and its records run one after another. Each record comes to an
//! [`AttemptEnd`] of its own. A record that does not succeed leaves the batch as a message of its own. The batch
//! is acked once each record is stored or has left.
//!
//! - If a shutdown or a dead channel interrupts the batch, it goes back to the broker as a whole, and the results
//!   so far are discarded. None of them has been stored yet.
//! - If the batch's lane, kind or group is paused before it starts, it goes back to the broker as a whole, too.
//! - If the batch's deadline passes, the record that is running has spent an attempt. Earlier records keep their
//!   ends, and later ones continue as messages of their own.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use bytes::Bytes;
use garenne_common::{clock, supervise::caught};
use garenne_pool::{self as pool, Cause, Ending};
use garenne_protocol::task::{BadBatch, BatchRecord, Envelope, read_batch};

use crate::{
    attempt::{Attempt, AttemptEnd, Outcome},
    handler::{BatchRecords, Sharing},
    panics::lock,
    spans::{AttemptSpan, Spans},
};

/// A task of a batch.
pub(crate) struct Record {
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) payload: Bytes,
    pub(crate) span: AttemptSpan,
}

/// The records of a batch, and how those that have run ended.
pub(crate) struct Batch {
    pub(crate) records: Vec<Record>,
    /// The ends of the records that have run, in order. They are kept here, and not in the output of the execution,
    /// because a batch that the pool gives up has no output.
    ends: Mutex<Vec<AttemptEnd>>,
}

/// What becomes of a batch after its run.
pub(crate) enum BatchEnd {
    /// Each record is settled by its own end.
    Apart(Vec<AttemptEnd>),
    /// The batch goes back to the broker as a whole. `executed` records had run.
    HandBack { executed: usize },
    /// A record ignores its cancellation and is still running at shutdown. The delivery stays unsettled until the
    /// connection closes, when the broker requeues it.
    Abandon,
}

impl Batch {
    /// Reads the records of a batch. Their payloads share the memory of `body`.
    pub(crate) fn read(envelope: &Envelope, body: &Bytes, spans: &Arc<Spans>) -> Result<Self, BadBatch> {
        let read = |record: &BatchRecord<'_>| {
            let mut envelope = record.envelope(envelope);
            spans.ensure_trace(&mut envelope);
            let envelope = Arc::new(envelope);
            let span = spans.attempt(&envelope);
            Record { envelope, payload: body.slice_ref(record.payload), span }
        };
        Ok(Self { records: read_batch(body)?.iter().map(read).collect(), ends: Mutex::default() })
    }

    /// Runs the records in order and keeps their ends. A cancellation takes effect between two records, because
    /// records are short tasks, which cannot be cancelled. `batch` has what the attempts have in common.
    pub(crate) async fn execute(&self, batch: Attempt, cx: pool::TaskContext) {
        if batch.is_paused(clock::now()) {
            return;
        }
        let bodies = self.records.iter().map(|it| (it.envelope.content_type, it.payload.clone())).collect();
        let batch_records = Arc::new(BatchRecords::new(bodies));
        for (index, Record { envelope, payload, span }) in self.records.iter().enumerate() {
            if cx.cause().is_some() || !batch.generation.is_open() {
                break;
            }
            let attempt = Attempt {
                envelope: Arc::clone(envelope),
                lane: None,
                sharing: Sharing::Batch(Arc::clone(&batch_records), index),
                body: payload.clone(),
                span: span.clone(),
                ..batch.clone()
            };
            let cx = pool::TaskContext::short(envelope.id.shared());
            let ending = match caught(attempt.execute(cx)).await {
                Ok(output) => Ending::Finished { output, cancelled_by: None },
                Err(message) => Ending::Panicked { message },
            };
            lock(&self.ends).push(AttemptEnd::of(ending));
            // Handlers that never wait would block other tasks of this runtime thread for the whole batch.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Derives the end of the batch from the way in which the pool ended it. The end of a record that was given up
    /// and returns later is ignored.
    pub(crate) fn end(&self, ending: Ending<()>) -> BatchEnd {
        let (mut ends, records) = (std::mem::take(&mut *lock(&self.ends)), self.records.len());
        let cause = match ending {
            Ending::Finished { cancelled_by, .. } => cancelled_by,
            Ending::NotStarted { cause } => Some(cause),
            Ending::GaveUp { cause: Cause::Shutdown, .. } => return BatchEnd::Abandon,
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
                return BatchEnd::Apart(ends);
            }
        };
        let executed = ends.len();
        let is_handed_back = |end: &AttemptEnd| matches!(end.outcome, Outcome::HandBack | Outcome::Abandon);
        let end_of_missing = match cause {
            // The channel died, the worker stops, or the batch is paused.
            None | Some(Cause::Shutdown) if executed < records => return BatchEnd::HandBack { executed },
            _ if ends.iter().any(is_handed_back) => return BatchEnd::HandBack { executed },
            // The remaining records continue as messages of their own, so that slow records do not delay them.
            Some(Cause::Deadline) => || AttemptEnd::not_started(Outcome::Defer { wait: Duration::ZERO }),
            _ => || AttemptEnd::of(Ending::NotStarted { cause: Cause::Stopped }),
        };
        ends.resize_with(records, end_of_missing);
        BatchEnd::Apart(ends)
    }
}

/// The batches that wait or run in this worker. Finds a record by its id.
#[derive(Default)]
pub(crate) struct RunningBatches(Mutex<Vec<Weak<Batch>>>);

impl RunningBatches {
    /// Adds a batch until it is dropped. The prefetch bounds the number of batches.
    pub(crate) fn add(&self, batch: &Arc<Batch>) {
        let mut batches = lock(&self.0);
        batches.retain(|batch| batch.strong_count() > 0);
        batches.push(Arc::downgrade(batch));
    }

    pub(crate) fn contains_record(&self, id: &str) -> bool {
        let batches: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        batches.iter().flat_map(|batch| &batch.records).any(|record| record.envelope.id.as_str() == id)
    }
}

#[cfg(test)]
mod tests;
