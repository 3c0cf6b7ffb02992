//! Completions: hold the delivery while the pool has the task, and settle it when the task has ended.

use std::sync::Arc;

use garenne_pool::{Completion, Ending};
use garenne_protocol::task::Envelope;

use super::{LanePipeline, quarantine::QuarantineRun};
use crate::{
    batch::Batch,
    consumer::Delivery,
    execute::{AttemptEnd, AttemptOutput},
    panics::lock,
    redelivery::DeliverySlot,
    registry::Entry,
    settlement::InFlight,
    spans::AttemptSpan,
};

/// The completion of an [`Execution`](crate::execution::Execution).
pub(crate) struct ExecutionCompletion {
    pub(super) pipeline: Arc<LanePipeline>,
    pub(super) delivery: HeldDelivery,
    pub(super) envelope: Arc<Envelope>,
    pub(super) entry: Arc<Entry>,
    pub(super) span: AttemptSpan,
    pub(super) batch: Option<Arc<Batch>>,
    pub(super) run: Option<QuarantineRun>,
}

/// The delivery of a task that waits or runs.
pub(super) enum HeldDelivery {
    /// The delivery of a short task or a batch.
    Owned(Delivery),
    /// The delivery of a long task. If the message is redelivered while the task runs, the new delivery takes the
    /// place of the lost one.
    Tracked(DeliverySlot),
}

impl HeldDelivery {
    /// Takes the delivery, to settle it. [`None`] only if a slot's delivery was taken before.
    fn take(self, pipeline: &LanePipeline, envelope: &Envelope) -> Option<Delivery> {
        match self {
            Self::Owned(delivery) => Some(delivery),
            Self::Tracked(slot) => pipeline.settler.redeliveries.finish(&envelope.id, &slot),
        }
    }
}

impl ExecutionCompletion {
    /// Whether a settlement can still reach the broker.
    pub(super) fn alive(&self) -> bool {
        match &self.delivery {
            HeldDelivery::Owned(delivery) => delivery.alive(),
            HeldDelivery::Tracked(slot) => lock(slot).as_ref().is_some_and(Delivery::alive),
        }
    }

    /// Returns what the pool did not admit to its queue.
    pub(super) fn hand_back(self) {
        let Self { pipeline, delivery, envelope, run, .. } = self;
        let delivery = delivery.take(&pipeline, &envelope);
        pipeline.end_run(run, move || drop(delivery));
    }
}

impl Completion<Option<AttemptOutput>> for ExecutionCompletion {
    fn trace_id(&self) -> Option<&str> {
        // Each record of a batch has a trace of its own.
        if self.batch.is_none() { self.envelope.trace_id() } else { None }
    }

    fn complete(self, ending: Ending<Option<AttemptOutput>>) {
        let Self { pipeline, delivery, envelope, entry, span, batch, run } = self;
        pipeline.pool_space.notify_one();
        let Some(delivery) = delivery.take(&pipeline, &envelope) else { return };
        let task = InFlight { lane: Arc::clone(&pipeline.lane), delivery, envelope, span };
        let (settler, batch_deadline) = (Arc::clone(&pipeline.settler), pipeline.batch_deadline);
        pipeline.end_run(run, move || match batch {
            None => {
                let ending = ending.map(|output| output.expect("a task has an output"));
                settler.settle(task, &entry, AttemptEnd::of(ending));
            }
            Some(batch) => batch.settle(task, ending.map(drop), &settler, &entry, batch_deadline),
        });
    }
}
