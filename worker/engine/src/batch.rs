//! Several tasks of one kind in one message: its records run one after another as one task of the
//! pool, so that a thousand of them take the room of one.
//!
//! A record that does not succeed leaves the batch as a message of its own, and the batch is taken off
//! its queue when every record is stored or has left. What is interrupted goes back whole, and its
//! results are thrown away: nothing of it has happened yet. A record that is still running when the
//! batch's time is up has spent an attempt; the records before it keep their ends, and those after it go on alone.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError, Weak},
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

/// One task of a batch.
pub(crate) struct Record {
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) payload: Bytes,
    pub(crate) span: AttemptSpan,
}

impl Record {
    /// Reads a batch's body, which the payloads go on sharing.
    pub(crate) fn read_all(
        batch: &Envelope,
        body: &Bytes,
        spans: &Arc<Spans>,
    ) -> Result<Vec<Self>, BadBatch> {
        let packed = read_batch(body)?;
        let record = |record: &BatchRecord<'_>| {
            let mut envelope = record.envelope(batch);
            spans.ensure_trace(&mut envelope);
            let envelope = Arc::new(envelope);
            let span = spans.attempt(&envelope);
            Self { envelope, payload: body.slice_ref(record.payload), span }
        };
        Ok(packed.iter().map(record).collect())
    }
}

/// The ends of the records that had their turn, in order. Shared with who settles the batch: the pool gives up a
/// batch whose record hangs, and with it what the others came to.
#[derive(Clone, Default)]
pub(crate) struct AttemptEnds(Arc<Mutex<Vec<AttemptEnd>>>);

impl AttemptEnds {
    fn push(&self, end: AttemptEnd) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(end);
    }

    /// Takes them. What a given up record comes to afterwards nobody asks for.
    fn take(&self) -> Vec<AttemptEnd> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A batch's records, as the pool runs them.
pub(crate) struct BatchAttempt {
    pub(crate) entry: Arc<Entry>,
    pub(crate) worker: Arc<str>,
    pub(crate) worker_context: WorkerContext,
    pub(crate) records: Arc<[Record]>,
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) directives: Arc<Directives>,
    pub(crate) ends: AttemptEnds,
}

impl BatchAttempt {
    /// Runs the records in order and notes the ends of those that had their turn. Told to stop, it
    /// stops between two records: a short task is not interrupted.
    pub(crate) async fn run(self, cx: pool::TaskContext) {
        let bodies = self.records.iter().map(|it| (it.envelope.content_type, it.payload.clone())).collect();
        let batch_records = Arc::new(BatchRecords::new(bodies));
        for (place, record) in self.records.iter().enumerate() {
            if cx.cause().is_some() || !self.generation.alive() {
                break;
            }
            self.ends.push(self.one(record, (Arc::clone(&batch_records), place)).await);
            // A thousand records that never wait would keep everything else off this thread.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn one(&self, record: &Record, batch: (Arc<BatchRecords>, usize)) -> AttemptEnd {
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
        let part = pool::TaskContext::short(envelope.id.shared());
        let ending = match AssertUnwindSafe(attempt.run(part)).catch_unwind().await {
            Ok(output) => Ending::Finished { output, told: None },
            Err(panic) => Ending::Panicked { message: pool::panic_message(panic) },
        };
        AttemptEnd::of(ending)
    }
}

/// What becomes of a batch.
pub(crate) enum BatchEnd {
    /// Each record goes its own way.
    Apart(Vec<AttemptEnd>),
    /// All of it goes back to the broker, after so many records had run.
    Back { ran: usize },
    /// A record is still running and given up: all of it is left to the broker.
    Abandon,
}

impl BatchEnd {
    /// Reads the pool's word on a batch of so many records, of which some had their turn.
    pub(crate) fn of(ending: Ending<()>, records: usize, ended: &AttemptEnds) -> Self {
        let mut ends = ended.take();
        let cause = match ending {
            Ending::Finished { told, .. } => told,
            Ending::NotStarted { cause } => Some(cause),
            Ending::GaveUp { cause: Cause::Shutdown, .. } => return Self::Abandon,
            // The record whose turn it was hangs, and ends as a task of its own would.
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
        let missing = records - ends.len();
        let back = ends.iter().any(|end| matches!(end.outcome, Outcome::HandBack | Outcome::Abandon));
        let rest = match cause {
            // Its channel died, or the worker stops, before every record had its turn.
            None | Some(Cause::Shutdown) if missing > 0 => return Self::Back { ran: ends.len() },
            _ if back => return Self::Back { ran: ends.len() },
            // What had no turn in good time goes on alone, so that slow records hold up nobody.
            Some(Cause::Deadline) => || AttemptEnd::untried(Outcome::PutOff { wait: Duration::ZERO }),
            _ => || AttemptEnd::of(Ending::NotStarted { cause: Cause::Stopped }),
        };
        ends.extend(std::iter::repeat_with(rest).take(missing));
        Self::Apart(ends)
    }
}

/// The batches that wait or run here, so that a record can be found by its id.
#[derive(Default)]
pub(crate) struct RunningBatches(Mutex<Vec<Weak<[Record]>>>);

impl RunningBatches {
    /// Notes a batch for as long as it lives. Their number is bounded by the prefetch.
    pub(crate) fn note(&self, records: &Arc<[Record]>) {
        let mut batches = self.held();
        batches.retain(|batch| batch.strong_count() > 0);
        batches.push(Arc::downgrade(records));
    }

    /// Whether a record of this id is here.
    pub(crate) fn hold(&self, id: &str) -> bool {
        let batches: Vec<_> = self.held().iter().filter_map(Weak::upgrade).collect();
        batches.iter().any(|batch| batch.iter().any(|record| record.envelope.id.as_str() == id))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<Weak<[Record]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
