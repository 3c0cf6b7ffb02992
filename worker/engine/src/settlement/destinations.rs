//! Where a task goes that is neither acked nor handed back, as a copy: a dead letter in `garenne.dead`, a delay queue
//! of its lane's retry ladder, or the quarantine.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use garenne_amqp::{Message, Target};
use garenne_common::{clock, random};
use garenne_protocol::{
    settlement::Settlement,
    task::{
        Copied, DeadReason, Envelope, TaskId, TraceContext, UnhandledRecord, WorkerIncarnation, epoch_ms,
        header, span_ms,
    },
    topology::{Delay, LaneQueues},
};

use super::Settler;
use crate::{
    consumer::Delivery,
    handler::{RefusedPart, RetryPolicy},
    in_flight::InFlight,
    spans::AttemptSpan,
};

/// The longest wait of a retry or a deferral. Stop directives are kept as long.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(Envelope::MAX_MS.unsigned_abs());

/// The largest count in the headers of a task without a handler. Larger ones have no further effect, and a header has a
/// bound.
const MOST_COUNTED: u32 = 1000;

/// Logs how many lines of dead letters were left out.
fn more_dead_letters(reason: DeadReason, suppressed: u64) {
    tracing::warn!(%reason, suppressed, "more dead letters");
}

impl Settler {
    /// Publishes a task as a dead letter, then takes the original off its queue. `attempts` is the number of attempts with the
    /// one that ended, if the task started.
    ///
    /// A task that did not start gets a span as well, because this is where its trace ends.
    pub(crate) fn dead_letter(
        &self,
        task: InFlight,
        attempts: Option<u32>,
        reason: DeadReason,
        error: String,
    ) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            task.span.end_dead(reason, &error);
            let (id, kind) = (&task.envelope.id, &task.envelope.kind);
            if self.logs_dead_letter(reason) {
                tracing::warn!(task = %id, %kind, trace_id = task.envelope.trace_id(), %reason, error, "dead letter");
            }
            self.metrics.kind(kind.as_str()).dead(reason);
            let lane = self.lane_of(&task);
            let copied = self.copy_after_attempt(&task);
            let copied = attempts.into_iter().fold(copied, Copied::attempt);
            let copied = copied.dead(reason, &error, &self.worker, &lane, clock::now());
            self.publish_copy(
                &lane,
                task.delivery,
                copied,
                Target::queue(self.names.dead()),
                Settlement::Dead,
            )
            .await;
        })
    }

    /// The dead letter of what a handler refused of a task. It is a task of its own: with the id of the whole one, a
    /// replay would have no effect.
    pub(super) fn letter_of_part(&self, task: &InFlight, part: &RefusedPart) -> Message {
        let id = TaskId::derived(&task.envelope.id, "refused");
        let envelope = Envelope { id, ..Envelope::clone(&task.envelope) };
        let now = clock::now();
        let copied = Copied::of(&task.delivery.head.properties, &envelope, now);
        let copied = copied.first_seen(task.delivery.head.received_at).attempt(task.envelope.attempt + 1);
        let copied = copied.dead(part.reason, &part.error, &self.worker, &self.lane_of(task), now);
        let mut properties = copied.into_properties();
        if let Some(content_type) = part.content_type {
            properties = properties.with_content_type(content_type.as_str().into());
        }
        Message { target: Target::queue(self.names.dead()), properties, body: part.payload.clone().into() }
    }

    /// The properties of a copy of a task, with the checkpoint that its attempt has left.
    fn copy_after_attempt(&self, task: &InFlight) -> Copied {
        let copied = copy_of(task);
        match self.checkpoints.take(&task.envelope) {
            Some(json) => copied.checkpoint(&json),
            None => copied,
        }
    }

    /// Counts and logs what a handler refused of a task, once its dead letter is confirmed.
    pub(super) fn count_refused_part(&self, task: &InFlight, part: &RefusedPart) {
        let RefusedPart { reason, error, codes, .. } = part;
        codes.iter().for_each(|code| self.metrics.records_refused("amqp", code).inc());
        let Envelope { id, kind, .. } = &*task.envelope;
        self.metrics.kind(kind.as_str()).dead(*reason);
        if self.logs_dead_letter(*reason) {
            tracing::warn!(task = %id, %kind, trace_id = task.envelope.trace_id(), %reason, error, "dead letter of a part");
        }
    }

    /// Publishes a delivery without an envelope as a dead letter: it cannot be read or is too large.
    ///
    /// It counts as kind `unknown`.
    pub(crate) async fn dead_letter_unread(
        &self,
        lane: Arc<str>,
        delivery: Delivery,
        reason: DeadReason,
        error: String,
    ) {
        let kind = "unknown";
        // The trace headers may be valid although the rest is not.
        let trace = header::trace(delivery.head.properties.headers());
        let trace_id = trace.as_ref().map(TraceContext::trace_id);
        if self.logs_dead_letter(reason) {
            tracing::warn!(kind, trace_id, %reason, error, "dead letter");
        }
        self.metrics.kind(kind).dead(reason);
        let now = clock::now();
        let copied = Copied::verbatim(&delivery.head.properties, delivery.head.routing_key.as_str(), now);
        let copied = copied.first_seen(delivery.head.received_at);
        let copied = copied.dead(reason, &error, &self.worker, &lane, now);
        self.publish_copy(&lane, delivery, copied, Target::queue(self.names.dead()), Settlement::Dead).await;
    }

    /// Whether there is room for the log line of a dead letter: ten a second for each reason. The others are counted in
    /// the log, and all in `garenne_dead_total`.
    pub(super) fn logs_dead_letter(&self, reason: DeadReason) -> bool {
        self.dead_letter_log.takes(reason, |suppressed| more_dead_letters(reason, suppressed))
    }

    /// Logs how many lines were left out in the seconds that have ended.
    pub(crate) fn report_dead_letters(&self) {
        self.dead_letter_log.report(more_dead_letters);
    }

    /// Spends an attempt: publishes a copy for the next one, or a dead letter if this was the last.
    ///
    /// The copy waits for `after` if the handler asked for that, otherwise for the back-off of `policy`. Since
    /// the task ran without crashing its worker, the copy leaves the quarantine if it was there.
    pub(crate) fn retry(
        &self,
        task: InFlight,
        policy: &RetryPolicy,
        error: String,
        after: Option<Duration>,
    ) -> BoxFuture<'_, ()> {
        let spent = task.envelope.attempt + 1;
        let max = policy.most_attempts(self.max_attempts);
        if spent >= max {
            let error = format!("{error} (attempt {spent} of {max})");
            return self.dead_letter(task, Some(spent), DeadReason::AttemptsExhausted, error);
        }
        task.span.end(Settlement::Retried, Some(&error));
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        tracing::info!(task = %id, %kind, trace_id, attempt = spent, error, "attempt failed, will be retried");
        let now = clock::now();
        let copied = self.copy_after_attempt(&task).unmarked().attempt(spent);
        let (rung, copied) = match after {
            Some(after) => {
                let after = after.min(MAX_WAIT);
                (self.ladder.rung_below(after), copied.not_before(epoch_ms(now + after)))
            }
            None => {
                let wait = policy.backoff(spent);
                (self.ladder.rung_near(wait, random::chance()), copied.without(header::NOT_BEFORE))
            }
        };
        self.publish_to_ladder(task, Some(spent), rung, copied)
    }

    /// Publishes a copy that is due after `wait`, or later if the task itself is, without spending an attempt.
    ///
    /// The wait is at most [`MAX_WAIT`]. The copy leaves the quarantine if the task was there.
    pub(crate) fn defer(&self, task: InFlight, wait: Duration) -> BoxFuture<'_, ()> {
        task.span.end(Settlement::Retried, None);
        let now = clock::now();
        // A task of a paused group may have a delay of its own, which must not end with the pause.
        let wait = wait.max(task.envelope.due_in(now).unwrap_or_default()).min(MAX_WAIT);
        let copied = self.copy_after_attempt(&task).unmarked().not_before(epoch_ms(now + wait));
        self.publish_to_ladder(task, None, self.ladder.rung_below(wait), copied)
    }

    /// Publishes a copy to the end of a lane's queue, for a worker that has the task's handler, without spending an
    /// attempt.
    pub(crate) async fn pass_on(&self, task: InFlight, lane: Arc<str>) {
        task.span.end(Settlement::Retried, None);
        let queues = self.lane_queues(&lane);
        let passed_on = task.envelope.unhandled.as_ref().map_or(0, |record| record.passed_on);
        let passed_on = passed_on.saturating_add(1).min(MOST_COUNTED);
        self.end_wait(&task);
        let record =
            UnhandledRecord { passed_on, returns: counted_returns(&task), ..UnhandledRecord::default() };
        let copied = Self::keyed(copy_of(&task).unhandled(record), &task, queues);
        let (target, rung) = (Target::lane(queues), Target::queue(queues.rung(self.ladder.rungs()[0])));
        // The lane's queue may be full of such tasks, and would reject this one as long as this worker holds it.
        self.publish_copy_or(&lane, task.delivery, copied, target, rung).await;
    }

    /// Publishes a copy that waits for `delay` because no running worker has its kind, without spending an attempt.
    /// `since` is when it began to wait, in milliseconds since 1970.
    pub(crate) async fn wait_for_handler(&self, task: InFlight, since: i64, delay: Delay) {
        task.span.end(Settlement::Retried, None);
        let due = Some(self.count_unhandled(&task, since, delay));
        let record =
            UnhandledRecord { since: Some(since), due, passed_on: 0, returns: counted_returns(&task) };
        let copied = copy_of(&task).unhandled(record);
        self.publish_to_ladder(task, None, delay, copied).await;
    }

    /// Counts a task that waits for a handler, and logs the first one of its kind. Returns under which time it counts.
    fn count_unhandled(&self, task: &InFlight, since: i64, delay: Delay) -> i64 {
        let (lane, kind) = (&task.lane, task.envelope.kind.as_str());
        let earlier = task.envelope.unhandled.as_ref().and_then(|record| record.due);
        let (now, delay) = (epoch_ms(clock::now()), span_ms(delay.as_duration()));
        let (due, is_first) = self.unhandled.put_off(lane, kind, since, earlier, now, delay);
        if is_first {
            let wait = self.unknown_kind_wait;
            tracing::warn!(%lane, kind, ?wait, "no running worker has a handler for the kind, its tasks wait");
        }
        due
    }

    /// Ends the count of a task that waited for a handler, if it did.
    pub(crate) fn end_wait(&self, task: &InFlight) {
        if let Some(due) = task.envelope.unhandled.as_ref().and_then(|record| record.due) {
            self.unhandled.seen(&task.lane, task.envelope.kind.as_str(), due, epoch_ms(clock::now()));
        }
    }

    /// Publishes a copy to a delay queue of the task's lane, then takes the original off its queue.
    ///
    /// A task of the quarantine that cannot be retried becomes a dead letter: its lane is not defined any more, and
    /// no other lane takes its kind. It then has this number of attempts, or that of the task. The span of its attempt,
    /// if any, has ended already.
    fn publish_to_ladder(
        &self,
        task: InFlight,
        attempts: Option<u32>,
        rung: Delay,
        copied: Copied,
    ) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(lane) = self.retry_lane(&task) else {
                let (recorded, kind) =
                    (task.envelope.lane.as_deref().unwrap_or(""), task.envelope.kind.as_str());
                let error =
                    format!("header garenne-lane names no lane ({recorded:?}), and none takes kind {kind:?}");
                let task = InFlight { span: AttemptSpan::default(), ..task };
                return self.dead_letter(task, attempts, DeadReason::Malformed, error).await;
            };
            let queues = self.lane_queues(&lane);
            let copied = copied.without(header::LANE);
            let copied = Self::keyed(copied, &task, queues);
            let target = Target::queue(queues.rung(rung));
            self.publish_copy(&lane, task.delivery, copied, target, Settlement::Retried).await;
        })
    }

    /// Moves a task to the quarantine, where it runs alone. The copy records the lane that it came from.
    pub(crate) async fn quarantine(&self, task: InFlight) {
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        let returns = task.envelope.delivery_count;
        tracing::warn!(task = %id, %kind, trace_id, returns, "task moved to the quarantine");
        let copied = copy_of(&task).unmarked().with(header::LANE, header::long(&self.lane_of(&task)));
        self.publish_to_quarantine(task, copied, Settlement::Quarantined).await;
    }

    /// Returns a task to the quarantine after a run there that crashed its worker.
    ///
    /// `runs` is the number of such runs including this one, `crashed` the worker of the last one.
    pub(crate) async fn quarantine_after_crash(
        &self,
        task: InFlight,
        runs: u32,
        crashed: &WorkerIncarnation,
    ) {
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        tracing::warn!(task = %id, %kind, trace_id, runs, worker = %crashed, "quarantined task crashed its worker");
        let copied = copy_of(&task).crashed(runs, crashed);
        self.publish_to_quarantine(task, copied, Settlement::Quarantined).await;
    }

    /// Returns a task to the quarantine after `delay`, because no running worker has a handler for it. `since` is when it
    /// began to wait, in milliseconds since 1970.
    pub(crate) async fn wait_in_quarantine(&self, task: InFlight, since: i64, delay: Delay) {
        let due = Some(self.count_unhandled(&task, since, delay));
        let record = UnhandledRecord { since: Some(since), due, ..UnhandledRecord::default() };
        let (lane, copied) = (self.lane_of(&task), copy_of(&task).unhandled(record));
        let target = Target::queue(self.names.quarantine_retry(delay));
        // The topology of an earlier version has only the queue with the shortest delay.
        self.publish_copy_or(&lane, task.delivery, copied, target, self.quarantine_entry()).await;
    }

    /// Returns a task to the quarantine because this worker has no handler for it, so that another worker gets
    /// it, after a second or `at_once`.
    ///
    /// The broker delivers one task of the quarantine to a worker at a time, so that a copy that does not wait cannot
    /// reach this worker before the original is acked.
    pub(crate) async fn pass_to_other_worker(&self, task: InFlight, at_once: bool) {
        self.end_wait(&task);
        let copied = copy_of(&task).unhandled(UnhandledRecord::default());
        if at_once {
            let (lane, target) = (self.lane_of(&task), Target::queue(self.names.quarantine()));
            return self.publish_copy(&lane, task.delivery, copied, target, Settlement::Retried).await;
        }
        self.publish_to_quarantine(task, copied, Settlement::Retried).await;
    }

    /// Publishes a copy to the quarantine's delay queue, where it waits for a second.
    ///
    /// A copy that ran at once could crash this worker before the original is acked, and the original would come back
    /// as a second copy.
    async fn publish_to_quarantine(&self, task: InFlight, copied: Copied, settlement: Settlement) {
        let lane = self.lane_of(&task);
        self.publish_copy(&lane, task.delivery, copied, self.quarantine_entry(), settlement).await;
    }

    /// The copy with a key if its lane is sharded, which distributes by key.
    fn keyed(copied: Copied, task: &InFlight, queues: LaneQueues<'_>) -> Copied {
        if queues.is_sharded() { copied.keyed(task.envelope.id.as_str()) } else { copied }
    }

    /// The lane whose retry ladder a task uses.
    ///
    /// A quarantined task uses the lane that it came from, as recorded in its header `garenne-lane`. Any other
    /// task uses the lane that it was delivered to. If that lane is not defined (any more), the lane that takes
    /// the task's kind is used. [`None`] if there is no such lane either.
    pub(super) fn retry_lane(&self, task: &InFlight) -> Option<Arc<str>> {
        let lanes = &self.routes.lanes;
        let is_defined = |lane: &&str| lanes.defined().any(|(name, _)| name == *lane);
        let candidates = [task.envelope.lane.as_deref(), Some(&*task.lane)];
        let lane = candidates.into_iter().flatten().find(is_defined);
        lane.or_else(|| lanes.taking(task.envelope.kind.as_str())).map(Arc::from)
    }

    /// The lane that a dead letter or a quarantined task names: the one that it can be retried in, if there is one.
    pub(super) fn lane_of(&self, task: &InFlight) -> Arc<str> {
        self.retry_lane(task).unwrap_or_else(|| Arc::clone(&task.lane))
    }

    /// The queues of a lane, as many as it has shards.
    pub(super) fn lane_queues<'a>(&'a self, lane: &'a str) -> LaneQueues<'a> {
        LaneQueues::new(&self.names, lane, self.routes.lanes.shards(lane))
    }
}

/// The redeliveries of a task, for the header of its copy.
fn counted_returns(task: &InFlight) -> u32 {
    task.envelope.returns().min(MOST_COUNTED)
}

/// The properties of a copy of a task. They include when a worker first received the task.
fn copy_of(task: &InFlight) -> Copied {
    let copied = Copied::of(&task.delivery.head.properties, &task.envelope, clock::now());
    copied.first_seen(task.delivery.head.received_at)
}
