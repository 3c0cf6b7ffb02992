//! Dispatch: submits admitted tasks to the lane's pool. Their completions hold the deliveries meanwhile, and settle
//! them when the tasks have ended.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use garenne_pool::{Completion, Ending, Refusal};
use garenne_protocol::task::Envelope;
use tokio::time::timeout;

use super::{Admitted, LanePipeline, QuarantineRun, Ready, key_limits::KeyPlace};
use crate::{
    batch::Batch,
    consumer::Delivery,
    execute::{Attempt, AttemptEnd, AttemptOutput},
    execution::Execution,
    handler::Sharing,
    panics::lock,
    redelivery::DeliverySlot,
    registry::Entry,
    settlement::InFlight,
    spans::AttemptSpan,
};

/// How often tasks that wait for a full pool are searched for dead channels.
const DEAD_CHANNEL_CHECK: Duration = Duration::from_millis(250);

impl LanePipeline {
    /// Splits a task, or a batch, into what the pool runs and what settles it afterwards.
    pub(super) fn prepare(
        self: &Arc<Self>,
        admitted: Admitted,
        entry: Arc<Entry>,
        place: Option<KeyPlace>,
        run: Option<Box<QuarantineRun>>,
    ) -> Ready {
        let Admitted { task: InFlight { delivery, envelope, span, .. }, batch } = admitted;
        if let Some(batch) = &batch {
            self.batches.add(batch);
        }
        self.member.grouped.track(&envelope);
        let attempt = Attempt {
            entry: Arc::clone(&entry),
            envelope: Arc::clone(&envelope),
            lane: self.pausing_lane(&envelope),
            worker: Arc::clone(&self.worker),
            sharing: Sharing::Nothing,
            body: delivery.body.clone(),
            generation: delivery.generation(),
            span: span.clone(),
        };
        let (deadline, delivery) = match (&batch, attempt.deadline()) {
            // A long task to the pool, so that a cancellation can take effect between two records.
            (Some(_), _) => (Some(self.batch_deadline), HeldDelivery::Owned(delivery)),
            (None, None) => (None, HeldDelivery::Owned(delivery)),
            (None, deadline) => {
                let slot = self.settler.redeliveries.track(&envelope.id, delivery);
                (deadline, HeldDelivery::Tracked(slot))
            }
        };
        let attempt = if batch.is_none() { attempt.with_team() } else { attempt };
        let mut spec = attempt.spec(deadline);
        if let Some(place) = &place {
            spec = spec.group(place.group());
        }
        let execution = Execution::new(attempt, batch.clone());
        let pipeline = Arc::clone(self);
        let completion = ExecutionCompletion { pipeline, delivery, envelope, entry, span, batch, place, run };
        (spec, execution, completion)
    }

    /// Submits tasks to the pool, and waits while it is full. If the pool is closed, they are handed back.
    ///
    /// A task whose channel dies while it waits is dropped: the broker delivers it again, and deliveries of dead
    /// channels would accumulate with each reconnect.
    pub(super) async fn dispatch(&self, mut ready: VecDeque<Ready>) {
        while !ready.is_empty() {
            let pool_space = self.pool_space.notified();
            match self.pool.submit_each(&mut ready) {
                Ok(()) => return,
                Err(Refusal::QueueFull { .. }) => {
                    // The notification may have gone to another waiter, whose tasks are all dead.
                    let _ = timeout(DEAD_CHANNEL_CHECK, pool_space).await;
                    let dead = take_dead(&mut ready, |(_, _, completion)| completion.alive());
                    dead.into_iter().for_each(|(_, _, completion)| completion.hand_back());
                }
                Err(_) => {
                    return ready.into_iter().for_each(|(_, _, completion)| completion.hand_back());
                }
            }
        }
    }
}

/// The completion of an [`Execution`](crate::execution::Execution).
pub(crate) struct ExecutionCompletion {
    pipeline: Arc<LanePipeline>,
    delivery: HeldDelivery,
    envelope: Arc<Envelope>,
    entry: Arc<Entry>,
    span: AttemptSpan,
    batch: Option<Arc<Batch>>,
    place: Option<KeyPlace>,
    /// Boxed, because nearly all tasks have none.
    run: Option<Box<QuarantineRun>>,
}

/// The delivery of a task that waits or runs.
enum HeldDelivery {
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
    fn alive(&self) -> bool {
        match &self.delivery {
            HeldDelivery::Owned(delivery) => delivery.alive(),
            HeldDelivery::Tracked(slot) => lock(slot).as_ref().is_some_and(Delivery::alive),
        }
    }

    /// Returns what the pool did not admit to its queue.
    fn hand_back(self) {
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
        let Self { pipeline, delivery, envelope, entry, span, batch, place, run } = self;
        drop(place);
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

/// Removes and returns the items that are not alive. Keeps the order of the others.
fn take_dead<T>(ready: &mut VecDeque<T>, alive: impl Fn(&T) -> bool) -> VecDeque<T> {
    if ready.iter().all(&alive) {
        return VecDeque::new();
    }
    let (kept, dead) = ready.drain(..).partition(alive);
    *ready = kept;
    dead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tasks_of_dead_channels_are_taken_out() {
        let mut ready = VecDeque::from([1, 2, 3, 4, 5]);
        assert!(take_dead(&mut ready, |_| true).is_empty());
        assert_eq!(ready, [1, 2, 3, 4, 5]);
        assert_eq!(take_dead(&mut ready, |n| n % 2 == 1), [2, 4]);
        assert_eq!(ready, [1, 3, 5]);
        assert_eq!(take_dead(&mut ready, |_| false), [1, 3, 5]);
        assert!(ready.is_empty());
    }
}
