//! Admission: decodes a delivery and checks whether its task may run now.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{shutdown::Settlement, supervise};
use garenne_protocol::task::{ContentType, DeadReason, Envelope, Origin};

use super::{
    Admitted, LanePipeline, Ready, foreign,
    key_limits::{DEFERRAL, NoPlace},
};
use crate::{
    batch::Batch, consumer::Delivery, fleet::DirectiveEffect, registry::Entry, settlement::InFlight,
    spans::AttemptSpan,
};

/// Redeliveries from which on a task may be the cause of crashes.
const SUSPICIOUS_RETURNS: u32 = 2;
/// Recent crashes in the fleet from which on such a task is quarantined.
const SUSPICIOUS_CRASHES: usize = 2;

impl LanePipeline {
    /// Returns the task if it may enter the pool now. Otherwise the delivery has been passed to the settlement,
    /// or to a background task that needs to wait for something first.
    pub(super) fn admit(self: &Arc<Self>, delivery: Delivery, now: SystemTime) -> Option<Ready> {
        let delivery = self.without_untrusted_headers(delivery);
        let envelope = match self.decode(&delivery, now) {
            Ok(envelope) => Arc::new(envelope),
            Err((reason, error)) => {
                self.settler.dead_letter_unread(Arc::clone(&self.lane), delivery, reason, error);
                return None;
            }
        };
        let is_batch = envelope.content_type == ContentType::Batch;
        // The records of a batch have spans of their own.
        let span = if is_batch { AttemptSpan::default() } else { self.spans.attempt(&envelope) };
        let task = InFlight { lane: Arc::clone(&self.lane), delivery, envelope, span };
        let admitted = if is_batch { self.admit_batch(task) } else { self.admit_task(task) };
        self.check(admitted?, now)
    }

    /// Removes headers that only workers write if a publisher may have written them. Copies are made of what is
    /// left. Of a foreign message, nothing is left but the payload and its source.
    pub(super) fn without_untrusted_headers(&self, mut delivery: Delivery) -> Delivery {
        if let Some(lane) = self.foreign.as_ref().filter(|_| foreign::is_foreign(&delivery)) {
            return self.as_task(delivery, lane);
        }
        let exchange = delivery.head.exchange.as_str();
        let origin = if !exchange.is_empty() && exchange != self.settler.names.shards(&self.lane) {
            Origin::Publisher
        } else if self.is_quarantine {
            Origin::Quarantine
        } else {
            Origin::Lane
        };
        if let Some((properties, ignored)) = origin.believable(&delivery.head.properties) {
            tracing::debug!(lane = %self.lane, exchange, ?ignored, "ignored headers that only workers write");
            self.count_ignored(ignored);
            delivery.set_properties(properties);
        }
        delivery
    }

    /// Counts headers that are not trusted.
    pub(super) fn count_ignored(&self, headers: Vec<&'static str>) {
        headers.into_iter().for_each(|header| self.settler.metrics.headers_ignored(header).inc());
    }

    /// Reads the envelope of a delivery.
    ///
    /// # Errors
    /// The reason and the error text of the dead letter.
    fn decode(&self, delivery: &Delivery, now: SystemTime) -> Result<Envelope, (DeadReason, String)> {
        if let Some(problem) = &delivery.head.unreadable {
            return Err((DeadReason::Malformed, format!("the message cannot be read: {problem}")));
        }
        let (size, max) = (delivery.body.len(), self.max_payload);
        if size > max {
            let error = format!("the body has {size} bytes, max_payload allows {max}");
            return Err((DeadReason::TooLarge, error));
        }
        if self.foreign.is_some()
            && let Some(encoding) = foreign::encoding(&delivery.head.properties)
        {
            let error =
                format!("the content encoding {encoding:?} is not supported; send the payload without one");
            return Err((DeadReason::Unmapped, error));
        }
        let is_known = |kind: &str| self.registry.get(kind).is_some();
        let default_kind = self.default_kind.as_deref();
        let (key, properties) = (delivery.head.routing_key.as_str(), &delivery.head.properties);
        let mut envelope = Envelope::read(key, properties, default_kind, is_known, now)
            .map_err(|malformed| (DeadReason::Malformed, malformed.to_string()))?;
        // The records of a batch have traces of their own.
        if envelope.content_type != ContentType::Batch {
            self.spans.ensure_trace(&mut envelope);
        }
        // The broker sets the count on redeliveries only. On a first delivery the publisher wrote it.
        if !delivery.head.redelivered {
            envelope.delivery_count = 0;
        }
        Ok(envelope)
    }

    /// A redelivered task is not admitted if it succeeded here before, or if it is still running here: then the
    /// new delivery replaces the lost one.
    fn admit_task(&self, mut task: InFlight) -> Option<Admitted> {
        if task.delivery.head.redelivered {
            if self.settler.redeliveries.has_succeeded(&task.envelope.id) {
                task.delivery.settle(Settlement::Acked);
                return None;
            }
            task.delivery = self.settler.redeliveries.replace_lost(&task.envelope.id, task.delivery)?;
        }
        Some(Admitted { task, batch: None })
    }

    /// A redelivered batch is admitted without the records that succeeded here before. A batch that cannot be
    /// read becomes a dead letter as a whole.
    fn admit_batch(&self, task: InFlight) -> Option<Admitted> {
        let mut batch = match Batch::read(&task.envelope, &task.delivery.body, &self.spans) {
            Ok(batch) => batch,
            Err(bad) => {
                self.settler.dead_letter(task, DeadReason::Malformed, bad.to_string());
                return None;
            }
        };
        if task.delivery.head.redelivered {
            batch.records.retain(|record| !self.settler.redeliveries.has_succeeded(&record.envelope.id));
            if batch.records.is_empty() {
                task.delivery.settle(Settlement::Acked);
                return None;
            }
        }
        Some(Admitted { task, batch: Some(Arc::new(batch)) })
    }

    /// The checks that tasks and batches have in common: expiry, directives, due time, handler, and whether the
    /// task may have crashed workers.
    fn check(self: &Arc<Self>, admitted: Admitted, now: SystemTime) -> Option<Ready> {
        let envelope = &admitted.task.envelope;
        if envelope.expired(now) {
            self.dead_letter(admitted, DeadReason::Expired, "expired before it started");
            return None;
        }
        match self.member.directives.effect_on(envelope, self.pausing_lane(envelope).as_deref(), now) {
            Some(DirectiveEffect::Deferred(wait)) => {
                self.settler.defer(admitted.task, wait);
                return None;
            }
            // The quarantine is consumed while the task's lane is not.
            Some(DirectiveEffect::LanePaused) if self.is_quarantine => {
                self.settler.defer(admitted.task, Duration::ZERO);
                return None;
            }
            // The consumer is about to be cancelled. The dropped delivery goes back to the queue.
            Some(DirectiveEffect::LanePaused) => return None,
            // A stop of a batch's group is checked for each record before it starts.
            Some(DirectiveEffect::Stopped) if admitted.batch.is_none() => {
                self.dead_letter(admitted, DeadReason::Stopped, "stopped by an operator");
                return None;
            }
            Some(DirectiveEffect::Stopped) | None => {}
        }
        if let Some(wait) = envelope.due_in(now) {
            self.settler.defer(admitted.task, wait);
            return None;
        }
        let entry = self.registry.get(envelope.kind.as_str()).cloned();
        let message = admitted.task.delivery.fingerprint();
        if self.is_quarantine {
            // It may take seconds to know how the last run ended.
            self.admit_later("quarantine-run", message, Arc::clone(self).run_alone(admitted, entry));
            return None;
        }
        let Some(entry) = entry else {
            // It may take a request to the broker to know whether another worker has one.
            let settle = Arc::clone(self).settle_unhandled(admitted);
            self.admit_later("unknown-kind", message, settle);
            return None;
        };
        self.settler.end_wait(&admitted.task);
        if admitted.batch.is_some() && entry.options.deadline.is_some() {
            // Long tasks cannot run in a batch: each needs a place in the pool, a deadline and a delivery of its
            // own. The records go through the retry ladder and not directly to the lane's queue, because a queue
            // that is full of such batches would reject their records forever.
            self.settler.settle_each(admitted.into_tasks(), |settler, record| {
                settler.defer(record, Duration::ZERO);
            });
            return None;
        }
        if envelope.returns() >= SUSPICIOUS_RETURNS {
            // Reading the lifecycle stream takes time, during which other tasks go on.
            let check = Arc::clone(self).quarantine_or_dispatch(admitted, entry);
            self.admit_later("quarantine-check", message, check);
            return None;
        }
        // Groups are stopped as one, so a task of a group keeps it.
        let place = match envelope.group {
            Some(_) => Ok(None),
            None => self.key_limits.take(&admitted.task.delivery, envelope.content_type, &entry.options),
        };
        match place {
            Ok(place) => Some(self.prepare(admitted, entry, place, None)),
            Err(NoPlace) => {
                self.settler.defer(admitted.task, DEFERRAL);
                None
            }
        }
    }

    /// The lane whose pause applies to a task: this one, or in the quarantine the lane that the task is from.
    pub(super) fn pausing_lane(&self, task: &Envelope) -> Option<Arc<str>> {
        if self.is_quarantine { task.lane.as_deref().map(Into::into) } else { Some(Arc::clone(&self.lane)) }
    }

    /// Continues the admission of a message in the background. A panic there counts like one in
    /// [`admit`](Self::admit).
    pub(super) fn admit_later(
        self: &Arc<Self>,
        name: &'static str,
        message: Option<u64>,
        step: impl Future<Output = ()> + Send + 'static,
    ) {
        let (settler, step) = (Arc::clone(&self.settler), supervise::isolated(name, step));
        self.settler.in_background(name, async move {
            if let (Err(failure), Some(message)) = (step.await, message) {
                settler.redeliveries.record_panic(message, &failure.to_string());
            }
        });
    }

    /// Dead-letters the task, or each record of the batch.
    pub(super) fn dead_letter(&self, admitted: Admitted, reason: DeadReason, error: &str) {
        let error = error.to_owned();
        self.settler.settle_each(admitted.into_tasks(), move |settler, task| {
            settler.dead_letter(task, reason, error.clone());
        });
    }

    /// Moves a task that was redelivered repeatedly to the quarantine if workers crashed recently, and dispatches
    /// it otherwise.
    async fn quarantine_or_dispatch(self: Arc<Self>, admitted: Admitted, entry: Arc<Entry>) {
        if self.member.recent_crashes().await >= SUSPICIOUS_CRASHES {
            return self.settler.quarantine(admitted.task);
        }
        let ready = self.prepare(admitted, entry, None, None);
        self.dispatch([ready].into()).await;
    }
}
