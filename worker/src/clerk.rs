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

use futures_util::future::join_all;
use garenne_common::{
    broker::{Backoff, Message, PublishError, Publisher, Target},
    shutdown::Fate,
    task::{Copied, DeadReason, Envelope, NewTask, TraceContext, epoch_ms, header},
    telemetry::{Metrics, Traces},
    topology::{Ladder, Names},
};
use rand::Rng;
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    consumer::Delivery,
    execute::{End, Outcome},
    handler::{RetryPolicy, Routes},
    hurry::last_word,
    loans::Loans,
    registry::Entry,
    sink::{Accepted, Desk, Finished, Parcel, Start, results},
    spans::AttemptSpan,
};

mod lanes;

/// Settles tasks of every lane.
pub(crate) struct Clerk {
    pub(crate) worker: Arc<str>,
    pub(crate) names: Names,
    pub(crate) ladder: Ladder,
    pub(crate) max_attempts: u32,
    /// Where follow-ups go.
    pub(crate) routes: Arc<Routes>,
    /// Whether `reply_to` is answered.
    pub(crate) replies: bool,
    pub(crate) publisher: Publisher,
    pub(crate) desk: Desk,
    pub(crate) loans: Loans,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
    /// The runtime that talks to the broker; completions arrive on others.
    pub(crate) runtime: Handle,
    /// Copies and replies on their way.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when nothing may be waited for any longer.
    pub(crate) hurry: CancellationToken,
    /// Replies nobody could be found for.
    pub(crate) unroutable_replies: AtomicU64,
}

impl Clerk {
    /// Acts on an outcome. Returns at once; what takes time goes on in the background.
    pub(crate) fn settle(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: Arc<Envelope>,
        entry: &Entry,
        End { outcome, attempt, took }: End,
        span: AttemptSpan,
    ) {
        if let Some(attempt) = attempt {
            span.outcome(attempt);
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
                span.settled(Fate::Retried, None);
                self.put_off(lane, delivery, &envelope, wait);
            }
            Outcome::HandBack => {
                span.settled(Fate::Requeued, None);
                self.hand_back(delivery, &envelope);
            }
            Outcome::Abandon => {
                span.settled(Fate::Abandoned, None);
                delivery.settle(Fate::Abandoned);
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
        if self.desk.is_empty() && !wants_reply && follow_ups.is_empty() {
            return self.acked(delivery, &finished.envelope, &span);
        }
        let (this, lane) = (Arc::clone(self), Arc::clone(lane));
        let reply = wants_reply.then(|| finished.clone());
        let envelope = Arc::clone(&finished.envelope);
        // The tracker counts the parcel until it is answered.
        let open = self.tracker.token();
        let attempt = span.clone();
        let answer = move |accepted| {
            let _open = open;
            match accepted {
                Some(Accepted::Stored) => this.stored(delivery, envelope, follow_ups, reply, attempt),
                Some(Accepted::StoredAnd(starts)) => {
                    let task = |it: Start| NewTask::following(&envelope, it.id, it.kind, it.body);
                    follow_ups.extend(starts.into_iter().map(task));
                    this.stored(delivery, envelope, follow_ups, reply, attempt);
                }
                Some(Accepted::Conflict(detail)) => {
                    this.dead(&lane, delivery, Some(envelope), DeadReason::Conflict, detail, &attempt);
                }
                Some(Accepted::Refused(detail)) => {
                    this.dead(&lane, delivery, Some(envelope), DeadReason::Rejected, detail, &attempt);
                }
                None => {
                    attempt.settled(Fate::Requeued, None);
                    drop(delivery);
                }
            }
        };
        self.desk.hand_over(Parcel { finished, span, answer: Box::new(answer) });
    }

    /// The result is safe: starts what follows, then takes the task off its queue, then replies. Follow-ups
    /// come after the sinks, because a result they refuse must start nothing, and before the ack, because
    /// after it nobody would know of them.
    fn stored(
        self: &Arc<Self>,
        delivery: Delivery,
        envelope: Arc<Envelope>,
        follow_ups: Vec<NewTask>,
        reply: Option<Finished>,
        span: AttemptSpan,
    ) {
        let (this, trace) = (Arc::clone(self), span.context(&envelope));
        let finish = move |delivery| {
            this.acked(delivery, &envelope, &span);
            reply.into_iter().for_each(|finished| this.reply(finished));
        };
        if follow_ups.is_empty() {
            return finish(delivery);
        }
        let this = Arc::clone(self);
        let starting = async move {
            let now = SystemTime::now();
            let tasks = follow_ups.into_iter().map(|task| NewTask { trace: trace.clone(), ..task });
            let (messages, spans): (_, Vec<_>) = tasks.filter_map(|task| this.message(task, now)).unzip();
            // What could not be started before the channel died or time was up comes with the next
            // delivery, under the same ids.
            let started = this.publish_while(&delivery, messages).await;
            drop(spans);
            if started {
                finish(delivery);
            }
        };
        self.tracker.spawn_on(starting, &self.runtime);
    }

    /// Takes a finished task off its queue. Where that is too late, the message will come back and
    /// must not run again.
    fn acked(&self, delivery: Delivery, envelope: &Envelope, span: &AttemptSpan) {
        span.settled(Fate::Acked, None);
        if !delivery.alive() && envelope.id_given {
            self.loans.note_done(&envelope.id);
        }
        delivery.settle(Fate::Acked);
    }

    /// Sends the result to whoever asked for it. It never holds up the ack.
    fn reply(self: &Arc<Self>, finished: Finished) {
        let this = Arc::clone(self);
        let sending = async move {
            let Some(queue) = finished.envelope.reply_to.clone() else { return };
            match this.publisher.publish(results::message(&finished, Target::queue(queue))).await {
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
        span.settled(Fate::Retried, Some(&error));
        let trace_id = envelope.trace_id();
        tracing::info!(task = %envelope.id, kind = %envelope.kind, trace_id, attempt = spent, error, "will be tried again");
        let now = SystemTime::now();
        // What survived a run alone is no suspect any longer.
        let copied =
            Copied::of(&delivery.properties, &envelope, now).disarmed(0).attempt(spent).first_seen(now);
        let lane = envelope.lane.as_deref().unwrap_or(lane);
        let (rung, copied) = match after {
            Some(after) => {
                let due = epoch_ms(now + after);
                (self.ladder.rung_below(after), copied.not_before(due))
            }
            None => {
                let wait = policy.wait(spent);
                (self.ladder.rung_near(wait, rand::rng().random()), copied.due_now())
            }
        };
        self.to_rung(lane, rung, delivery, &envelope, copied);
    }

    /// Puts a task off through the ladder, no attempt spent.
    pub(crate) fn put_off(
        self: &Arc<Self>,
        lane: &Arc<str>,
        delivery: Delivery,
        envelope: &Envelope,
        wait: Duration,
    ) {
        let now = SystemTime::now();
        let copied = Copied::of(&delivery.properties, envelope, now).not_before(epoch_ms(now + wait));
        let lane = envelope.lane.as_deref().unwrap_or(lane);
        self.to_rung(lane, self.ladder.rung_below(wait), delivery, envelope, copied);
    }

    /// Back to the broker, no attempt spent. In the suspect queue the mark of the run that did not
    /// come to its end is taken off.
    pub(crate) fn hand_back(self: &Arc<Self>, delivery: Delivery, envelope: &Envelope) {
        if !envelope.suspect_armed {
            return drop(delivery);
        }
        let runs = envelope.suspect_runs.saturating_sub(1);
        let copied = Copied::of(&delivery.properties, envelope, SystemTime::now()).disarmed(runs);
        self.copy(delivery, copied, Target::queue(self.names.suspect()), Fate::Suspected);
    }

    /// To the suspect queue, where it runs alone.
    pub(crate) fn suspect(self: &Arc<Self>, lane: &Arc<str>, delivery: Delivery, envelope: &Envelope) {
        let (trace_id, returns) = (envelope.trace_id(), envelope.delivery_count);
        tracing::warn!(task = %envelope.id, kind = %envelope.kind, trace_id, returns, "suspect");
        let copied = Copied::of(&delivery.properties, envelope, SystemTime::now())
            .disarmed(envelope.suspect_runs)
            .with(header::LANE, header::long(lane));
        self.copy(delivery, copied, Target::queue(self.names.suspect()), Fate::Suspected);
    }

    /// Marks a run in the suspect queue as begun: the marked copy is the one that will run.
    pub(crate) fn arm(self: &Arc<Self>, delivery: Delivery, envelope: &Envelope) {
        let copied =
            Copied::of(&delivery.properties, envelope, SystemTime::now()).armed(envelope.suspect_runs + 1);
        self.copy(delivery, copied, Target::queue(self.names.suspect()), Fate::Suspected);
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
        span.dead(reason, &error);
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
        let copied = copied.dead(reason, &error, &self.worker, lane, now);
        self.copy(delivery, copied, Target::queue(self.names.dead()), Fate::Dead);
    }

    /// Publishes a copy until it is confirmed, then takes the original off the queue. Gives the
    /// original back when its channel died or time is up.
    fn copy(self: &Arc<Self>, delivery: Delivery, copied: Copied, target: Target, fate: Fate) {
        let message = Message { target, properties: copied.into_properties(), body: delivery.body.clone() };
        let this = Arc::clone(self);
        let copying = async move {
            if this.publish_while(&delivery, vec![message]).await {
                delivery.settle(fate);
            }
        };
        self.tracker.spawn_on(copying, &self.runtime);
    }

    /// Publishes messages until each is confirmed; false when the delivery's channel died or time is up
    /// before that.
    async fn publish_while(&self, delivery: &Delivery, mut messages: Vec<Message>) -> bool {
        let mut backoff = Backoff::default();
        while delivery.alive() {
            let publishing = messages.iter().map(|message| self.publisher.publish(message.clone()));
            let outcomes = tokio::select! {
                outcomes = join_all(publishing) => outcomes,
                // What was sent may be stored all the same; the task goes back, and both bear its id.
                () = last_word(&self.hurry) => return false,
            };
            let (mut left, mut problem) = (Vec::new(), None);
            for (message, outcome) in messages.into_iter().zip(outcomes) {
                if let Err(error) = outcome {
                    problem = Some((message.target.routing_key.clone(), error));
                    left.push(message);
                }
            }
            let Some((queue, error)) = problem else { return true };
            messages = left;
            let wait = backoff.next_wait();
            tracing::warn!(%error, ?wait, queue, count = messages.len(), "not confirmed, will be sent again");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.hurry.cancelled() => return false,
            }
        }
        false
    }
}
