//! Admission: decodes a delivery and checks whether its task may run now.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::shutdown::Settlement;
use garenne_common::supervise;
use garenne_protocol::task::{ContentType, DeadReason, Envelope, Origin};

use super::{Admitted, LanePipeline, Ready, batch::records_of};
use crate::{
    batch::Record, consumer::Delivery, fleet::DirectiveEffect, registry::Entry, settlement::InFlight,
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
        let admitted = if envelope.content_type == ContentType::Batch {
            self.admit_batch(delivery, envelope)?
        } else {
            self.admit_task(delivery, envelope)?
        };
        self.check(admitted, now)
    }

    /// Removes headers that only workers write if a publisher may have written them. Copies are made of what is
    /// left.
    fn without_untrusted_headers(&self, mut delivery: Delivery) -> Delivery {
        let exchange = delivery.exchange.as_str();
        let origin = if !exchange.is_empty() && exchange != self.settler.names.shards(&self.lane) {
            Origin::Publisher
        } else if self.is_quarantine {
            Origin::Quarantine
        } else {
            Origin::Lane
        };
        if let Some((properties, ignored)) = origin.believable(&delivery.properties) {
            tracing::debug!(lane = %self.lane, exchange, ?ignored, "ignored headers that only workers write");
            ignored.into_iter().for_each(|header| self.settler.metrics.headers_ignored(header).inc());
            delivery.properties = Arc::new(properties);
        }
        delivery
    }

    /// Reads the envelope of a delivery.
    ///
    /// # Errors
    /// The reason and the error text of the dead letter.
    fn decode(&self, delivery: &Delivery, now: SystemTime) -> Result<Envelope, (DeadReason, String)> {
        if let Some(problem) = &delivery.unreadable {
            return Err((DeadReason::Malformed, format!("the message cannot be read: {problem}")));
        }
        let (size, max) = (delivery.body.len(), self.max_payload);
        if size > max {
            let error = format!("the body has {size} bytes, max_payload allows {max}");
            return Err((DeadReason::TooLarge, error));
        }
        let is_known = |kind: &str| self.registry.get(kind).is_some();
        let default_kind = self.default_kind.as_deref();
        let mut envelope =
            Envelope::read(&delivery.routing_key, &delivery.properties, default_kind, is_known, now)
                .map_err(|malformed| (DeadReason::Malformed, malformed.to_string()))?;
        // The records of a batch have traces of their own.
        if envelope.content_type != ContentType::Batch {
            self.spans.ensure_trace(&mut envelope);
        }
        // The broker sets the count on redeliveries only. On a first delivery the publisher wrote it.
        if !delivery.redelivered {
            envelope.delivery_count = 0;
        }
        Ok(envelope)
    }

    /// A redelivered task is not admitted if it succeeded here before, or if it is still running here: then the
    /// new delivery replaces the lost one.
    fn admit_task(&self, delivery: Delivery, envelope: Arc<Envelope>) -> Option<Admitted> {
        let delivery = if delivery.redelivered {
            if self.settler.redeliveries.has_succeeded(&envelope.id) {
                delivery.settle(Settlement::Acked);
                return None;
            }
            self.settler.redeliveries.replace_lost(&envelope.id, delivery)?
        } else {
            delivery
        };
        let (lane, span) = (Arc::clone(&self.lane), self.spans.attempt(&envelope));
        Some(Admitted::Task(InFlight { lane, delivery, envelope, span }))
    }

    /// A redelivered batch is admitted without the records that succeeded here before. A batch that cannot be
    /// read becomes a dead letter as a whole.
    fn admit_batch(&self, delivery: Delivery, envelope: Arc<Envelope>) -> Option<Admitted> {
        let (lane, span) = (Arc::clone(&self.lane), AttemptSpan::default());
        let batch = InFlight { lane, delivery, envelope, span };
        let mut records = match Record::read_all(&batch.envelope, &batch.delivery.body, &self.spans) {
            Ok(records) => records,
            Err(bad) => {
                self.settler.dead_letter(batch, DeadReason::Malformed, bad.to_string());
                return None;
            }
        };
        if batch.delivery.redelivered {
            records.retain(|record| !self.settler.redeliveries.has_succeeded(&record.envelope.id));
            if records.is_empty() {
                batch.delivery.settle(Settlement::Acked);
                return None;
            }
        }
        Some(Admitted::Batch(batch, Arc::from(records)))
    }

    /// The checks that tasks and batches have in common: expiry, directives, due time, handler, and whether the
    /// task may have crashed workers.
    fn check(self: &Arc<Self>, admitted: Admitted, now: SystemTime) -> Option<Ready> {
        let envelope = admitted.envelope();
        if envelope.expired(now) {
            admitted.dead_letter(&self.settler, DeadReason::Expired, "expired before it started".into());
            return None;
        }
        match self.member.directives().effect_on(envelope, now) {
            Some(DirectiveEffect::Deferred(wait)) => {
                self.settler.defer(admitted.into_in_flight(), wait);
                return None;
            }
            // A stop of a batch's group is checked for each record before it starts.
            Some(DirectiveEffect::Stopped) if matches!(admitted, Admitted::Task(_)) => {
                admitted.dead_letter(&self.settler, DeadReason::Stopped, "stopped by an operator".into());
                return None;
            }
            Some(DirectiveEffect::Stopped) | None => {}
        }
        if let Some(wait) = envelope.due_in(now) {
            self.settler.defer(admitted.into_in_flight(), wait);
            return None;
        }
        let entry = self.registry.get(envelope.kind.as_str()).cloned();
        if self.is_quarantine {
            // It may take seconds to know how the last run ended.
            let this = Arc::clone(self);
            let run = async move { this.run_alone(admitted, entry).await };
            supervise::isolated("quarantine-run", run).spawn_in(&self.settler.tracker).detach();
            return None;
        }
        let Some(entry) = entry else {
            let error = format!("no handler for kind {:?}", envelope.kind.as_str());
            admitted.dead_letter(&self.settler, DeadReason::UnknownKind, error);
            return None;
        };
        let is_suspicious = envelope.delivery_count >= SUSPICIOUS_RETURNS;
        let admitted = match admitted {
            Admitted::Batch(batch, records) if entry.options.deadline.is_some() => {
                self.defer_records(batch, &records);
                return None;
            }
            admitted => admitted,
        };
        if is_suspicious {
            // Reading the lifecycle stream takes time, during which other tasks go on.
            let this = Arc::clone(self);
            let check = async move { this.quarantine_or_dispatch(admitted, entry).await };
            supervise::isolated("quarantine-check", check).spawn_in(&self.settler.tracker).detach();
            return None;
        }
        Some(self.prepare(admitted, entry, None))
    }

    /// Publishes each record of a batch as a message of its own.
    ///
    /// Long tasks cannot run in a batch: each needs a place in the pool, a deadline and a delivery of its own. The
    /// records go through the retry ladder and not directly to the lane's queue, because a queue that is full of
    /// such batches would reject their records forever.
    fn defer_records(&self, batch: InFlight, records: &[Record]) {
        for record in records_of(batch, records) {
            self.settler.defer(record, Duration::ZERO);
        }
    }

    /// Moves a task that was redelivered repeatedly to the quarantine if workers crashed recently, and dispatches
    /// it otherwise.
    async fn quarantine_or_dispatch(self: Arc<Self>, admitted: Admitted, entry: Arc<Entry>) {
        if self.member.recent_crashes().await >= SUSPICIOUS_CRASHES {
            return self.settler.quarantine(admitted.into_in_flight());
        }
        let ready = self.prepare(admitted, entry, None);
        self.dispatch([ready].into()).await;
    }
}
