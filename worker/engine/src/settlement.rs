//! Acts on what became of a task: sinks and ack, or a confirmed copy and ack, or back to the broker.
//!
//! The copy is confirmed before the original is acked, and a result is stored before its task is
//! acked; what fails on the way leaves the original unacked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use garenne_amqp::{PublishError, Publisher, Target};
use garenne_common::{
    shutdown::Settlement,
    telemetry::{Metrics, Traces},
};
use garenne_protocol::{
    task::{Copied, DeadReason, Envelope, NewTask, TraceContext, WorkerIncarnation, epoch_ms, header},
    topology::{Ladder, Names},
};
use rand::Rng;
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    consumer::{Delivery, MissingQueues},
    execute::{AttemptEnd, Outcome},
    force_close::after_last_answers,
    handler::{RetryPolicy, Routes},
    redelivery::RedeliveryTracker,
    registry::Entry,
    sink::{Accepted, Finished, SinkBuffer, SinkItem, Start, results},
    spans::AttemptSpan,
};

mod copies;
mod lanes;
#[cfg(test)]
pub(crate) mod tests;

use copies::Published;

/// The longest that a task is put off, or waits for its next attempt: as long as stop directives are kept.
const MAX_WAIT: Duration = Duration::from_millis(Envelope::MAX_MS.unsigned_abs());

/// Settles tasks of every lane.
pub(crate) struct Settler {
    pub(crate) worker: Arc<str>,
    pub(crate) names: Names,
    pub(crate) ladder: Ladder,
    pub(crate) max_attempts: u32,
    /// Where follow-ups go.
    pub(crate) routes: Arc<Routes>,
    /// Whether `reply_to` is answered.
    pub(crate) replies: bool,
    pub(crate) publisher: Publisher,
    /// What copies could not reach.
    pub(crate) missing: Arc<MissingQueues>,
    pub(crate) sink_buffer: SinkBuffer,
    pub(crate) redeliveries: RedeliveryTracker,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    /// The runtime that talks to the broker; completions arrive on others.
    pub(crate) runtime: Handle,
    /// Copies and replies on their way.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when nothing may be waited for any longer.
    pub(crate) force_close: CancellationToken,
    /// Replies nobody could be found for.
    pub(crate) unroutable_replies: AtomicU64,
}

impl Settler {
    /// Acts on an outcome. Returns at once; what takes time goes on in the background.
    pub(crate) fn settle(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: Arc<Envelope>,
        entry: &Entry,
        AttemptEnd { outcome, attempt, took }: AttemptEnd,
        span: AttemptSpan,
    ) {
        if let Some(attempt) = attempt {
            span.set_outcome(attempt);
        }
        match (attempt, took) {
            (Some(attempt), Some(took)) => entry.metrics.ended(attempt, took),
            (Some(attempt), None) => entry.metrics.counted(attempt),
            (None, _) => {}
        }
        match outcome {
            Outcome::Done { output, started_at, took } => {
                let (worker, trace) = (Arc::clone(&self.worker), span.context(&envelope));
                let finished = Finished { envelope, worker, started_at, took, output, trace };
                self.done(lane, delivery, finished, span);
            }
            Outcome::Retry { error, after } => {
                self.retry(lane, delivery, envelope, &entry.options.retry, (error, after), &span);
            }
            Outcome::Dead { reason, error } => {
                self.dead(lane, delivery, Some(envelope), reason, error, &span);
            }
            Outcome::PutOff { wait } => {
                span.end(Settlement::Retried, None);
                self.put_off(lane, delivery, &envelope, wait);
            }
            Outcome::HandBack => {
                span.end(Settlement::Requeued, None);
                drop(delivery);
            }
            Outcome::Abandon => {
                span.end(Settlement::Abandoned, None);
                delivery.settle(Settlement::Abandoned);
            }
        }
    }

    /// Completes when no copy, result or reply is on its way.
    pub(crate) async fn idle(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    fn done(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        mut finished: Finished,
        span: AttemptSpan,
    ) {
        let wants_reply = self.replies && finished.envelope.reply_to.is_some();
        let mut follow_ups = std::mem::take(&mut finished.output.follow_ups);
        if self.sink_buffer.is_empty() && !wants_reply && follow_ups.is_empty() {
            return self.acked(delivery, &finished.envelope, &span);
        }
        let (this, lane, generation) = (Arc::clone(self), Arc::clone(lane), delivery.generation());
        let reply = wants_reply.then(|| finished.clone());
        let envelope = Arc::clone(&finished.envelope);
        // The tracker counts the item until it is answered.
        let open = self.tracker.token();
        let attempt = span.clone();
        let answer = move |accepted| {
            let _open = open;
            match accepted {
                Some(Accepted::Stored) => this.stored(&lane, delivery, envelope, follow_ups, reply, attempt),
                Some(Accepted::StoredAnd(starts)) => {
                    let task = |it: Start| NewTask::following(&envelope, it.id, it.kind, it.body);
                    follow_ups.extend(starts.into_iter().map(task));
                    this.stored(&lane, delivery, envelope, follow_ups, reply, attempt);
                }
                Some(Accepted::Conflict(detail)) => {
                    this.dead(&lane, delivery, Some(envelope), DeadReason::Conflict, detail, &attempt);
                }
                Some(Accepted::Refused(detail)) => {
                    this.dead(&lane, delivery, Some(envelope), DeadReason::Rejected, detail, &attempt);
                }
                None => {
                    attempt.end(Settlement::Requeued, None);
                    drop(delivery);
                }
            }
        };
        self.sink_buffer.hand_over(SinkItem { finished, span, generation, answer: Box::new(answer) });
    }

    /// The result is safe: starts what follows, then takes the task off its queue, then replies. Follow-ups
    /// come after the sinks, because a result they refuse must start nothing, and before the ack, because
    /// after it nobody would know of them.
    fn stored(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: Arc<Envelope>,
        follow_ups: Vec<NewTask>,
        reply: Option<Finished>,
        span: AttemptSpan,
    ) {
        let (this, trace) = (Arc::clone(self), span.context(&envelope));
        let (parent, attempt) = (Arc::clone(&envelope), span.clone());
        let finish = move |delivery| {
            this.acked(delivery, &envelope, &span);
            reply.into_iter().for_each(|finished| this.reply(finished));
        };
        if follow_ups.is_empty() {
            return finish(delivery);
        }
        let (this, lane) = (Arc::clone(self), Arc::clone(lane));
        let starting = async move {
            let now = SystemTime::now();
            let tasks = follow_ups.into_iter().map(|task| NewTask { trace: trace.clone(), ..task });
            let (messages, spans): (_, Vec<_>) = tasks.filter_map(|task| this.message(task, now)).unzip();
            // What could not be started before the channel died or time was up comes with the next
            // delivery, under the same ids.
            let started = this.publish_while(&delivery, messages).await;
            drop(spans);
            match started {
                Published::All => finish(delivery),
                Published::GivenUp => {}
                Published::Never(error) => {
                    let error = format!("a follow-up cannot be published: {error}");
                    this.dead(&lane, delivery, Some(parent), DeadReason::Rejected, error, &attempt);
                }
            }
        };
        self.tracker.spawn_on(starting, &self.runtime);
    }

    /// Takes a finished task off its queue. Where that is too late, the message will come back and
    /// must not run again. A message that came back once may do so again before its ack arrives: the
    /// broker's consumer timeout takes deliveries away while their channel is open.
    fn acked(&self, delivery: Delivery, envelope: &Envelope, span: &AttemptSpan) {
        span.end(Settlement::Acked, None);
        if (!delivery.alive() || delivery.redelivered) && envelope.id_given {
            self.redeliveries.mark_succeeded(&envelope.id);
        }
        delivery.settle(Settlement::Acked);
    }

    /// Sends the result to whoever asked for it. It never holds up the ack.
    fn reply(self: &Arc<Self>, finished: Finished) {
        let this = Arc::clone(self);
        let sending = async move {
            let Some(queue) = finished.envelope.reply_to.clone() else { return };
            let replying = this.publisher.publish(results::message(&finished, Target::queue(queue)));
            let replied = tokio::select! {
                replied = replying => replied,
                () = after_last_answers(&this.force_close) => return,
            };
            match replied {
                Ok(()) => {}
                Err(PublishError::Unroutable { .. }) => {
                    this.unroutable_replies.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let Envelope { id, .. } = &*finished.envelope;
                    tracing::warn!(task = %id, trace_id = finished.envelope.trace_id(), %error, "reply not sent");
                }
            }
        };
        self.tracker.spawn_on(sending, &self.runtime);
    }

    fn retry(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: Arc<Envelope>,
        policy: &RetryPolicy,
        (error, after): (String, Option<Duration>),
        span: &AttemptSpan,
    ) {
        let spent = envelope.attempt + 1;
        let most = policy.attempts.unwrap_or(self.max_attempts).max(1);
        if spent >= most {
            let error = format!("{error} (attempt {spent} of {most})");
            return self.dead(lane, delivery, Some(envelope), DeadReason::AttemptsExhausted, error, span);
        }
        span.end(Settlement::Retried, Some(&error));
        let trace_id = envelope.trace_id();
        tracing::info!(task = %envelope.id, kind = %envelope.kind, trace_id, attempt = spent, error, "will be tried again");
        let now = SystemTime::now();
        // What survived a run alone leaves the quarantine.
        let Some(lane) = self.lane_of(lane, &envelope) else {
            return self.without_lane(lane, delivery, &envelope);
        };
        let copied =
            Copied::of(&delivery.properties, &envelope, now).unmarked().attempt(spent).first_seen(now);
        let (rung, copied) = match after {
            Some(after) => {
                let after = after.min(MAX_WAIT);
                let due = epoch_ms(now + after);
                (self.ladder.rung_below(after), copied.not_before(due))
            }
            None => {
                let wait = policy.wait(spent);
                (self.ladder.rung_near(wait, rand::rng().random()), copied.due_now())
            }
        };
        self.to_rung(lane, rung, delivery, &envelope, copied.without(header::LANE));
    }

    /// Puts a task off through the ladder, no attempt spent. It leaves the quarantine, if it was there.
    pub(crate) fn put_off(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: &Envelope,
        wait: Duration,
    ) {
        let (now, wait) = (SystemTime::now(), wait.min(MAX_WAIT));
        let Some(lane) = self.lane_of(lane, envelope) else {
            return self.without_lane(lane, delivery, envelope);
        };
        // In its lane the marks of the quarantine mean nothing.
        let copied = Copied::of(&delivery.properties, envelope, now)
            .unmarked()
            .without(header::LANE)
            .not_before(epoch_ms(now + wait));
        self.to_rung(lane, self.ladder.rung_below(wait), delivery, envelope, copied);
    }

    /// The lane whose retry ladder a task takes: its own; out of the quarantine the one that it came from, where
    /// that is known and still exists, else the one that takes its kind.
    fn lane_of<'a>(&'a self, own: &'a str, envelope: &'a Envelope) -> Option<&'a str> {
        let lanes = &self.routes.lanes;
        let is_defined = |lane: &&str| lanes.defined().any(|(name, _)| name == *lane);
        let recorded = envelope.lane.as_deref().filter(is_defined);
        let of_kind = || lanes.taking(envelope.kind.as_str());
        recorded.or_else(|| Some(own).filter(is_defined)).or_else(of_kind)
    }

    /// A dead letter of a quarantined task that no lane is known for.
    fn without_lane(self: &Arc<Self>, own: &Arc<str>, delivery: Delivery, envelope: &Envelope) {
        let (recorded, kind) = (envelope.lane.as_deref().unwrap_or(""), envelope.kind.as_str());
        let error = format!("header garenne-lane names no lane ({recorded:?}), and none takes kind {kind:?}");
        let envelope = Some(Arc::new(envelope.clone()));
        self.dead(own, delivery, envelope, DeadReason::Malformed, error, &AttemptSpan::default());
    }

    /// To the quarantine, where it runs alone.
    ///
    /// The copy waits in the quarantine's retry queue first. A copy that ran at once could crash this worker
    /// before the original is acked, and the original would come back as a second copy.
    pub(crate) fn quarantine(self: &Arc<Self>, lane: &Arc<str>, delivery: Delivery, envelope: &Envelope) {
        let (trace_id, returns) = (envelope.trace_id(), envelope.delivery_count);
        tracing::warn!(task = %envelope.id, kind = %envelope.kind, trace_id, returns, "quarantine");
        let copied = Copied::of(&delivery.properties, envelope, SystemTime::now())
            .unmarked()
            .with(header::LANE, header::long(self.lane_of(lane, envelope).unwrap_or(lane)));
        let target = Target::queue(self.names.quarantine_retry());
        self.copy(lane, delivery, copied, target, Settlement::Quarantined);
    }

    /// Back to the quarantine, after a run there that crashed its worker, the `runs`-th such one. The copy
    /// waits first, as in [`Self::quarantine`].
    pub(crate) fn quarantine_again(
        self: &Arc<Self>,
        delivery: Delivery,
        envelope: &Envelope,
        runs: u32,
        crashed: &WorkerIncarnation,
    ) {
        let (trace_id, worker) = (envelope.trace_id(), crashed);
        tracing::warn!(task = %envelope.id, kind = %envelope.kind, trace_id, runs, %worker, "its worker crashed");
        let copied = Copied::of(&delivery.properties, envelope, SystemTime::now()).crashed(runs, crashed);
        let lane = self.recorded(envelope);
        let target = Target::queue(self.names.quarantine_retry());
        self.copy(lane, delivery, copied, target, Settlement::Quarantined);
    }

    /// The lane that a quarantined task came from; empty where none is known.
    fn recorded<'a>(&'a self, envelope: &'a Envelope) -> &'a str {
        self.lane_of("", envelope).unwrap_or_default()
    }

    /// Hands a task of the quarantine on to another worker, after a while. It has been waiting for one that
    /// has a handler since then, milliseconds since 1970.
    pub(crate) fn hand_on(self: &Arc<Self>, delivery: Delivery, envelope: &Envelope, since: i64) {
        let copied = Copied::of(&delivery.properties, envelope, SystemTime::now()).handed_on(since);
        let target = Target::queue(self.names.quarantine_retry());
        self.copy(self.recorded(envelope), delivery, copied, target, Settlement::Retried);
    }

    /// Makes it a dead letter. Without an envelope it could not even be read.
    pub(crate) fn dead(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: Option<Arc<Envelope>>,
        reason: DeadReason,
        error: String,
        span: &AttemptSpan,
    ) {
        let now = SystemTime::now();
        span.end_dead(reason, &error);
        let (kind, id) = envelope.as_ref().map_or(("unknown", None), |e| (e.kind.as_str(), Some(&e.id)));
        // What could not even be read may say that much.
        let unread = || header::trace(delivery.properties.headers());
        let trace = envelope.as_ref().map_or_else(unread, |envelope| envelope.trace.clone());
        let trace_id = trace.as_ref().map(TraceContext::trace_id);
        tracing::warn!(task = id.map(tracing::field::display), kind, trace_id, %reason, error, "dead");
        self.metrics.kind(kind).dead(reason);
        let copied = match &envelope {
            Some(envelope) => Copied::of(&delivery.properties, envelope, now),
            None => Copied::verbatim(&delivery.properties, &delivery.routing_key, now),
        };
        let recorded = envelope.as_ref().and_then(|envelope| self.lane_of(lane, envelope)).unwrap_or(lane);
        let copied = copied.dead(reason, &error, &self.worker, recorded, now);
        self.copy(recorded, delivery, copied, Target::queue(self.names.dead()), Settlement::Dead);
    }
}
