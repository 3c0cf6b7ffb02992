//! A task in the pool: what the pool runs, and what owns the delivery meanwhile.

use std::sync::Arc;

use super::{LanePipeline, QuarantineRun, Ready, key_limits::KeyPlace};
use crate::{
    execute::Attempt, execution::Execution, handler::Sharing, in_flight::InFlight, redelivery::Held,
    registry::Entry,
};

/// A task in the pool.
pub(crate) struct Dispatched {
    pub(super) pipeline: Arc<LanePipeline>,
    pub(super) task: Held,
    pub(super) entry: Arc<Entry>,
    pub(super) place: Option<KeyPlace>,
    /// Boxed, because nearly all tasks have none.
    pub(super) run: Option<Box<QuarantineRun>>,
}

impl LanePipeline {
    /// Prepares a task, or a batch, for the pool. The attempt gets clones of the envelope and the body.
    pub(super) fn prepare(
        self: &Arc<Self>,
        task: InFlight,
        entry: Arc<Entry>,
        place: Option<KeyPlace>,
        run: Option<Box<QuarantineRun>>,
    ) -> Ready {
        let InFlight { delivery, envelope, span, batch, .. } = &task;
        if let Some(batch) = batch {
            self.batches.add(batch);
        }
        self.member.grouped.track(envelope);
        let attempt = Attempt {
            entry: Arc::clone(&entry),
            envelope: Arc::clone(envelope),
            lane: self.pausing_lane(envelope),
            worker: Arc::clone(&self.worker),
            sharing: Sharing::Nothing,
            body: delivery.body.clone(),
            head: Arc::clone(&delivery.head),
            generation: delivery.generation(),
            span: span.clone(),
        };
        let batch = batch.clone();
        // A batch is a long task to the pool, so that a cancellation can take effect between two records.
        let deadline = if batch.is_some() { Some(self.batch_deadline) } else { attempt.deadline() };
        let attempt = if batch.is_none() { attempt.with_team() } else { attempt };
        let mut spec = attempt.spec(deadline);
        if let Some(place) = &place {
            spec = spec.group(place.group());
        }
        let task = match deadline {
            Some(_) if batch.is_none() => self.settler.redeliveries.track(task),
            _ => Held::Owned(task),
        };
        let execution = Execution::new(attempt, batch);
        (spec, execution, Dispatched { pipeline: Arc::clone(self), task, entry, place, run })
    }
}
