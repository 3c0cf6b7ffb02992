//! Completions: hold the delivery while the pool has the task, and settle it when the task has ended.

use std::sync::{Arc, PoisonError};

use garenne_pool::{Completion, Ending};
use garenne_protocol::task::Envelope;

use super::{LanePipeline, batch::BatchCompletion, quarantine::QuarantineRun};
use crate::{
    consumer::Delivery, execute::AttemptEnd, execution::ExecutionOutput, redelivery::DeliverySlot,
    registry::Entry, settlement::InFlight, spans::AttemptSpan,
};

/// The completion of an [`Execution`](crate::execution::Execution).
pub(crate) enum ExecutionCompletion {
    Task(TaskCompletion),
    Batch(BatchCompletion),
}

/// The completion of a task.
pub(crate) struct TaskCompletion {
    pub(super) pipeline: Arc<LanePipeline>,
    pub(super) lane: Arc<str>,
    pub(super) delivery: HeldDelivery,
    pub(super) envelope: Arc<Envelope>,
    pub(super) entry: Arc<Entry>,
    pub(super) span: AttemptSpan,
    pub(super) run: Option<QuarantineRun>,
}

/// The delivery of a task that waits or runs.
pub(super) enum HeldDelivery {
    /// The delivery of a short task.
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

    /// Whether a settlement can still reach the broker.
    fn alive(&self) -> bool {
        match self {
            Self::Owned(delivery) => delivery.alive(),
            Self::Tracked(slot) => {
                slot.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(Delivery::alive)
            }
        }
    }
}

impl TaskCompletion {
    fn settle(self, end: AttemptEnd) {
        let Self { pipeline, lane, delivery, envelope, entry, span, run } = self;
        let Some(delivery) = delivery.take(&pipeline, &envelope) else { return };
        let task = InFlight { lane, delivery, envelope, span };
        let settler = Arc::clone(&pipeline.settler);
        pipeline.end_run(run, move || settler.settle(task, &entry, end));
    }

    fn hand_back(self) {
        let Self { pipeline, delivery, envelope, run, .. } = self;
        let delivery = delivery.take(&pipeline, &envelope);
        pipeline.end_run(run, move || drop(delivery));
    }
}

impl ExecutionCompletion {
    /// Whether a settlement can still reach the broker.
    pub(super) fn alive(&self) -> bool {
        match self {
            Self::Task(task) => task.delivery.alive(),
            Self::Batch(batch) => batch.alive(),
        }
    }

    /// Returns what the pool did not admit to its queue.
    pub(super) fn hand_back(self) {
        match self {
            Self::Task(task) => task.hand_back(),
            Self::Batch(batch) => batch.hand_back(0),
        }
    }

    fn pipeline(&self) -> &LanePipeline {
        match self {
            Self::Task(task) => &task.pipeline,
            Self::Batch(batch) => &batch.pipeline,
        }
    }
}

impl Completion<ExecutionOutput> for ExecutionCompletion {
    fn trace_id(&self) -> Option<&str> {
        match self {
            Self::Task(task) => task.envelope.trace_id(),
            // Each record has a trace of its own.
            Self::Batch(_) => None,
        }
    }

    fn complete(self, ending: Ending<ExecutionOutput>) {
        self.pipeline().pool_space.notify_one();
        match self {
            Self::Task(task) => task.settle(AttemptEnd::of(ending.map(ExecutionOutput::task))),
            Self::Batch(batch) => batch.complete(ending.map(ExecutionOutput::batch)),
        }
    }
}
