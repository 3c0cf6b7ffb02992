//! From a delivery to its settlement, for one lane: read it, check it, queue it in the pool, and act
//! on what becomes of it.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use garenne_common::shutdown::Settlement;
use garenne_pool::{Completion, Ending, Refusal, Spec, panic_message};
use garenne_protocol::task::{ContentType, DeadReason, Envelope, Origin};
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};

use crate::{
    batch::RunningBatches,
    consumer::Delivery,
    execute::{Attempt, AttemptEnd},
    execution::{Execution, ExecutionOutput, LanePool},
    fleet::{DirectiveEffect, Member},
    handler::WorkerContext,
    redelivery::DeliverySlot,
    registry::{Entry, Registry},
    settlement::Settler,
    spans::{AttemptSpan, Spans},
};

mod batch;
mod quarantine;

use batch::InFlightBatch;
use quarantine::{QuarantineRun, Quarantined};

/// Returns that make a task suspicious, and unclean deaths that must have happened for it.
const SUSPICIOUS_RETURNS: u32 = 2;
const SUSPICIOUS_DEATHS: usize = 2;
/// How often what waits for room in the pool is searched for deliveries whose channel died.
const LOOK: Duration = Duration::from_millis(250);

/// A lane's pipeline.
pub(crate) struct LanePipeline {
    pub(crate) lane: Arc<str>,
    pub(crate) default_kind: Option<String>,
    pub(crate) max_payload: usize,
    pub(crate) worker: Arc<str>,
    pub(crate) worker_context: WorkerContext,
    pub(crate) registry: Arc<Registry>,
    pub(crate) pool: LanePool,
    pub(crate) settler: Arc<Settler>,
    pub(crate) member: Arc<Member>,
    /// Every batch of this worker.
    pub(crate) batches: Arc<RunningBatches>,
    pub(crate) spans: Arc<Spans>,
    /// How long the records of one may run.
    pub(crate) pack_time: Duration,
    /// Whether this is the quarantine, where each task runs alone and its start is on record first.
    pub(crate) quarantine: bool,
    /// The one run at a time in the quarantine.
    pub(crate) alone: Arc<Semaphore>,
    /// Told whenever a place in the pool gets free.
    pub(crate) room: Notify,
}

/// The half of a task that stays with us while the pool has the other.
pub(crate) enum InFlight {
    Task(InFlightTask),
    Pack(InFlightBatch),
}

/// A task's half: the slot to settle.
pub(crate) struct InFlightTask {
    pipeline: Arc<LanePipeline>,
    hold: Hold,
    envelope: Arc<Envelope>,
    entry: Arc<Entry>,
    span: AttemptSpan,
    run: Option<QuarantineRun>,
}

/// How the delivery is held while its task waits and runs.
enum Hold {
    /// A short task's: nobody else knows of it.
    Own(Delivery),
    /// A long task's: renewed when the message comes back while it runs.
    DeliverySlot(DeliverySlot),
}

impl InFlightTask {
    /// The delivery to settle. A slot is empty only after it was taken once.
    fn take_delivery(hold: Hold, pipeline: &LanePipeline, envelope: &Envelope) -> Option<Delivery> {
        match hold {
            Hold::Own(delivery) => Some(delivery),
            Hold::DeliverySlot(slot) => pipeline.settler.redeliveries.finish(&envelope.id, &slot),
        }
    }

    fn complete(self, end: AttemptEnd) {
        let Self { pipeline, hold, envelope, entry, span, run } = self;
        let Some(delivery) = Self::take_delivery(hold, &pipeline, &envelope) else { return };
        let this = Arc::clone(&pipeline);
        pipeline.end_run(run, move || this.settler.settle(&this.lane, delivery, envelope, &entry, end, span));
    }

    fn hand_back(self) {
        let Self { pipeline, hold, envelope, run, .. } = self;
        let delivery = Self::take_delivery(hold, &pipeline, &envelope);
        pipeline.end_run(run, move || drop(delivery));
    }

    /// Whether its settlement can still reach the broker.
    fn alive(&self) -> bool {
        match &self.hold {
            Hold::Own(delivery) => delivery.alive(),
            Hold::DeliverySlot(slot) => {
                slot.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(Delivery::alive)
            }
        }
    }
}

impl InFlight {
    fn pipeline(&self) -> &LanePipeline {
        match self {
            Self::Task(job) => &job.pipeline,
            Self::Pack(job) => &job.pipeline,
        }
    }

    fn alive(&self) -> bool {
        match self {
            Self::Task(job) => job.alive(),
            Self::Pack(job) => job.alive(),
        }
    }

    fn hand_back(self) {
        match self {
            Self::Task(job) => job.hand_back(),
            Self::Pack(job) => job.hand_back(0),
        }
    }
}

impl Completion<ExecutionOutput> for InFlight {
    fn trace_id(&self) -> Option<&str> {
        match self {
            Self::Task(job) => job.envelope.trace_id(),
            // Its records have one each.
            Self::Pack(_) => None,
        }
    }

    fn complete(self, ending: Ending<ExecutionOutput>) {
        self.pipeline().room.notify_one();
        match self {
            Self::Task(job) => job.complete(AttemptEnd::of(ending.map(ExecutionOutput::task))),
            Self::Pack(job) => job.complete(ending.map(ExecutionOutput::batch)),
        }
    }
}

/// A task that may enter the pool.
type Ready = (Spec, Execution, InFlight);

impl LanePipeline {
    /// Takes deliveries. Returns once the pool has them or they are on their way back; a pool that is full
    /// (with tasks of a channel that died) is waited for.
    ///
    /// # Errors
    /// The message of a panic over one of them, which goes back; the others are not concerned.
    pub(crate) async fn accept(self: &Arc<Self>, deliveries: Vec<Delivery>) -> Result<(), String> {
        let now = SystemTime::now();
        let mut ready = VecDeque::with_capacity(deliveries.len());
        let mut admitted = Ok(());
        for delivery in deliveries {
            match catch_unwind(AssertUnwindSafe(|| self.read(delivery, now))) {
                Ok(read) => ready.extend(read),
                Err(panic) => admitted = Err(panic_message(panic)),
            }
        }
        self.enter(ready).await;
        admitted
    }

    /// Takes internal headers off a delivery that nobody can have written who is believed. Copies are made of what
    /// is left.
    fn without_forged_headers(&self, mut delivery: Delivery) -> Delivery {
        let exchange = delivery.exchange.as_str();
        let origin = if !exchange.is_empty() && exchange != self.settler.names.shards(&self.lane) {
            Origin::Publisher
        } else if self.quarantine {
            Origin::Quarantine
        } else {
            Origin::Lane
        };
        if let Some((properties, ignored)) = origin.believable(&delivery.properties) {
            tracing::debug!(lane = %self.lane, exchange, ?ignored, "headers that only workers write are ignored");
            ignored.into_iter().for_each(|header| self.settler.metrics.headers_ignored(header).inc());
            delivery.properties = Arc::new(properties);
        }
        delivery
    }

    /// What is to run of a delivery now; nothing where something else was done about it.
    fn read(self: &Arc<Self>, delivery: Delivery, now: SystemTime) -> Option<Ready> {
        let delivery = self.without_forged_headers(delivery);
        let dead = |delivery, envelope: Option<Arc<Envelope>>, reason, error| {
            let span = envelope.as_ref().map(|envelope| self.spans.attempt(envelope)).unwrap_or_default();
            self.settler.dead(&self.lane, delivery, envelope, reason, error, &span);
            None
        };
        if let Some(problem) = &delivery.unreadable {
            let error = format!("the message cannot be read: {problem}");
            return dead(delivery, None, DeadReason::Malformed, error);
        }
        if delivery.body.len() > self.max_payload {
            let (size, max) = (delivery.body.len(), self.max_payload);
            let error = format!("the body has {size} bytes, max_payload allows {max}");
            return dead(delivery, None, DeadReason::TooLarge, error);
        }
        let known = |kind: &str| self.registry.get(kind).is_some();
        let default_kind = self.default_kind.as_deref();
        let read = Envelope::read(&delivery.routing_key, &delivery.properties, default_kind, known, now);
        let envelope = match read {
            Ok(mut envelope) => {
                // A batch stands for no task; its records have traces of their own.
                if envelope.content_type != ContentType::Batch {
                    self.spans.ensure_trace(&mut envelope);
                }
                // The broker counts returns only; a count on a first delivery is the publisher's.
                if !delivery.redelivered {
                    envelope.delivery_count = 0;
                }
                Arc::new(envelope)
            }
            Err(malformed) => return dead(delivery, None, DeadReason::Malformed, malformed.to_string()),
        };
        if envelope.content_type == ContentType::Batch {
            return self.read_pack(delivery, envelope, now);
        }
        let delivery = if delivery.redelivered {
            if self.settler.redeliveries.has_succeeded(&envelope.id) {
                delivery.settle(Settlement::Acked);
                return None;
            }
            self.settler.redeliveries.replace_lost(&envelope.id, delivery)?
        } else {
            delivery
        };
        if envelope.expired(now) {
            return dead(delivery, Some(envelope), DeadReason::Expired, "expired before it started".into());
        }
        match self.member.directives().effect_on(&envelope, now) {
            Some(DirectiveEffect::Stopped) => {
                return dead(delivery, Some(envelope), DeadReason::Stopped, "stopped by an operator".into());
            }
            Some(DirectiveEffect::Deferred(wait)) => {
                self.settler.put_off(&self.lane, delivery, &envelope, wait);
                return None;
            }
            None => {}
        }
        if let Some(wait) = envelope.due_in(now) {
            self.settler.put_off(&self.lane, delivery, &envelope, wait);
            return None;
        }
        let entry = self.registry.get(envelope.kind.as_str()).cloned();
        if self.quarantine {
            // Finding out what its last run came to takes a moment.
            let this = Arc::clone(self);
            let suspect = Quarantined::Task(envelope);
            self.settler.tracker.spawn(async move { this.quarantined(delivery, suspect, entry).await });
            return None;
        }
        let Some(entry) = entry else {
            let error = format!("no handler for kind {:?}", envelope.kind.as_str());
            return dead(delivery, Some(envelope), DeadReason::UnknownKind, error);
        };
        if envelope.delivery_count >= SUSPICIOUS_RETURNS {
            // Finding out takes a moment, in which the others go on.
            let this = Arc::clone(self);
            self.settler.tracker.spawn(async move { this.examine(delivery, envelope, entry).await });
            return None;
        }
        Some(self.ready(delivery, envelope, entry, None))
    }

    /// Takes a task that may crash its worker: it goes to the quarantine if it came back often enough and
    /// workers crashed.
    async fn examine(self: Arc<Self>, delivery: Delivery, envelope: Arc<Envelope>, entry: Arc<Entry>) {
        if self.member.recent_crashes().await >= SUSPICIOUS_DEATHS {
            return self.settler.quarantine(&self.lane, delivery, &envelope);
        }
        let ready = self.ready(delivery, envelope, entry, None);
        self.enter(VecDeque::from([ready])).await;
    }

    fn ready(
        self: &Arc<Self>,
        delivery: Delivery,
        envelope: Arc<Envelope>,
        entry: Arc<Entry>,
        run: Option<QuarantineRun>,
    ) -> Ready {
        let mut spec = Spec::short(envelope.id.shared());
        // A short task may ask for a deadline as well.
        let deadline = match (entry.options.deadline, envelope.timeout) {
            (Some(most), Some(asked)) => Some(asked.min(most)),
            (most, asked) => most.or(asked),
        };
        if let Some(deadline) = deadline {
            spec = spec.deadline(deadline);
        }
        if entry.options.cpu_bound {
            spec = spec.on_threads();
        }
        if let Some(group) = &envelope.group {
            spec = spec.group(group.as_str());
        }
        self.member.track_grouped(&envelope);
        let span = self.spans.attempt(&envelope);
        let attempt = Attempt {
            entry: Arc::clone(&entry),
            envelope: Arc::clone(&envelope),
            worker: Arc::clone(&self.worker),
            worker_context: self.worker_context.clone(),
            body: delivery.body.clone(),
            generation: delivery.generation(),
            directives: Arc::clone(self.member.directives()),
            span: span.clone(),
        };
        let hold = match deadline {
            Some(_) => Hold::DeliverySlot(self.settler.redeliveries.track(&envelope.id, delivery)),
            None => Hold::Own(delivery),
        };
        let job =
            InFlight::Task(InFlightTask { pipeline: Arc::clone(self), hold, envelope, entry, span, run });
        (spec, Execution::Task(attempt), job)
    }

    /// Submits to the pool as soon as there is room; hands back where the pool is closed. What waits for
    /// room while its channel dies is dropped: it comes again, and deliveries of dead channels would pile up.
    async fn enter(&self, mut ready: VecDeque<Ready>) {
        while !ready.is_empty() {
            let room = self.room.notified();
            match self.pool.submit_each(&mut ready) {
                Ok(()) => return,
                Err(Refusal::QueueFull { .. }) => {
                    // Whether there is room or not, it may have been told to one whose channel is dead.
                    let _ = timeout(LOOK, room).await;
                    let dead = take_dead(&mut ready, |(_, _, job)| job.alive());
                    dead.into_iter().for_each(|(_, _, job)| job.hand_back());
                }
                Err(_) => return ready.into_iter().for_each(|(_, _, job)| job.hand_back()),
            }
        }
    }
}

/// Takes out what is no longer alive, and keeps the others in order.
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
    fn what_waits_for_room_on_a_dead_channel_is_taken_out() {
        let mut ready = VecDeque::from([1, 2, 3, 4, 5]);
        assert!(take_dead(&mut ready, |_| true).is_empty());
        assert_eq!(ready, [1, 2, 3, 4, 5]);
        assert_eq!(take_dead(&mut ready, |n| n % 2 == 1), [2, 4]);
        assert_eq!(ready, [1, 3, 5]);
        assert_eq!(take_dead(&mut ready, |_| false), [1, 3, 5]);
        assert!(ready.is_empty());
    }
}
