//! Batches in the pipeline: one delivery and one place in the pool, and a settlement for each record.

use std::sync::Arc;

use garenne_common::{shutdown::Settlement, telemetry::metrics::TaskOutcome};
use garenne_pool::{Ending, Spec};
use garenne_protocol::task::Envelope;

use super::{ExecutionCompletion, LanePipeline, QuarantineRun, Ready};
use crate::{
    batch::{AttemptEnds, BatchAttempt, BatchEnd, Record},
    execution::Execution,
    registry::Entry,
    settlement::InFlight,
};

/// The completion of a batch.
pub(crate) struct BatchCompletion {
    pub(super) pipeline: Arc<LanePipeline>,
    batch: InFlight,
    records: Arc<[Record]>,
    entry: Arc<Entry>,
    ends: AttemptEnds,
    run: Option<QuarantineRun>,
}

impl BatchCompletion {
    pub(super) fn complete(mut self, ending: Ending<()>) {
        let (pipeline, run) = (Arc::clone(&self.pipeline), self.run.take());
        pipeline.end_run(run, move || self.settle(ending));
    }

    fn settle(self, ending: Ending<()>) {
        match BatchEnd::of(ending, self.records.len(), &self.ends) {
            BatchEnd::Apart(ends) => {
                let Self { pipeline, batch, records, entry, .. } = self;
                for (mut task, end) in records_of(batch, &records).zip(ends) {
                    if end.counted_as == Some(TaskOutcome::Timeout) {
                        // As a message of its own the record would be a short task without a deadline, and
                        // could hang forever.
                        let timeout = Some(task.envelope.timeout.unwrap_or(pipeline.batch_deadline));
                        task.envelope = Arc::new(Envelope { timeout, ..Envelope::clone(&task.envelope) });
                    }
                    pipeline.settler.settle(task, &entry, end);
                }
            }
            BatchEnd::HandBack { executed } => self.hand_back(executed),
            BatchEnd::Abandon => {
                self.entry.metrics.counted(TaskOutcome::Interrupted);
                self.records.iter().for_each(|record| record.span.end(Settlement::Abandoned, None));
                self.batch.delivery.settle(Settlement::Abandoned);
            }
        }
    }

    /// Whether a settlement can still reach the broker.
    pub(super) fn alive(&self) -> bool {
        self.batch.delivery.alive()
    }

    /// Hands the batch back as a whole and discards the results of the `executed` records that ran.
    pub(super) fn hand_back(mut self, executed: usize) {
        (0..executed).for_each(|_| self.entry.metrics.counted(TaskOutcome::Interrupted));
        self.records.iter().for_each(|record| record.span.end(Settlement::Requeued, None));
        let (pipeline, run) = (Arc::clone(&self.pipeline), self.run.take());
        pipeline.end_run(run, move || drop(self.batch));
    }
}

/// Divides a batch into its records. Each has a share of the batch's delivery, which is settled once all shares
/// are.
pub(super) fn records_of(batch: InFlight, records: &[Record]) -> impl Iterator<Item = InFlight> {
    let InFlight { lane, delivery, .. } = batch;
    let payloads = records.iter().map(|record| record.payload.clone());
    delivery.split(payloads).zip(records).map(move |(delivery, record)| {
        let (lane, envelope) = (Arc::clone(&lane), Arc::clone(&record.envelope));
        InFlight { lane, delivery, envelope, span: record.span.clone() }
    })
}

impl LanePipeline {
    pub(super) fn prepare_batch(
        self: &Arc<Self>,
        batch: InFlight,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
        run: Option<QuarantineRun>,
    ) -> Ready {
        // A long task to the pool, so that a cancellation can take effect between two records.
        let mut spec = Spec::long(batch.envelope.id.shared()).deadline(self.batch_deadline);
        if entry.options.cpu_bound {
            spec = spec.on_threads();
        }
        if let Some(group) = &batch.envelope.group {
            spec = spec.group(group.as_str());
        }
        self.batches.add(&records);
        self.member.track_grouped(&batch.envelope);
        let ends = AttemptEnds::default();
        let attempt = BatchAttempt {
            entry: Arc::clone(&entry),
            worker: Arc::clone(&self.worker),
            worker_context: self.worker_context.clone(),
            records: Arc::clone(&records),
            generation: batch.delivery.generation(),
            directives: Arc::clone(self.member.directives()),
            ends: ends.clone(),
        };
        let pipeline = Arc::clone(self);
        let completion = BatchCompletion { pipeline, batch, records, entry, ends, run };
        (spec, Execution::Batch(attempt), ExecutionCompletion::Batch(completion))
    }

    /// Quarantines each record of a batch as a message of its own, so that each is judged by its own runs.
    pub(super) fn quarantine_records(&self, batch: InFlight, records: &[Record]) {
        let lane = batch.envelope.lane.as_deref().map_or_else(|| Arc::clone(&self.lane), Arc::from);
        for record in records_of(InFlight { lane, ..batch }, records) {
            self.settler.quarantine(record);
        }
    }
}
