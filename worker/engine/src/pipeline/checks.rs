//! Admission: decodes a delivery and checks whether its task may run now.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::supervise;
use garenne_protocol::{
    settlement::Settlement,
    task::{ContentType, DeadReason, Envelope, Origin},
};

use super::{
    LanePipeline,
    key_limits::{DEFERRAL, KeyPlace, NoPlace},
    quarantine,
};
use crate::{
    batch::Batch, consumer::Delivery, fleet::DirectiveEffect, in_flight::InFlight, registry::RegistryEntry,
    settlement::Settler, spans::AttemptSpan,
};

/// Why a task may not run now.
pub(super) enum NotNow {
    /// It has expired or was stopped.
    Dead(DeadReason, &'static str),
    /// It is not due yet, it is paused, or its key has no place.
    Deferred(Duration),
    /// The lane is paused, so its consumer is about to be cancelled.
    LanePaused,
    NotReady,
    /// It is a batch of long tasks: each of them needs a place in the pool, a deadline and a delivery of its own. The records
    /// go through the retry ladder and not directly to the lane's queue, because a queue that is full of such batches would
    /// reject their records forever.
    Divided,
    /// This worker has no handler. It may take a request to the broker to know whether another worker has one.
    Unhandled,
    /// It may crash this worker. Reading the lifecycle stream takes time, during which other tasks go on.
    Suspicious(Arc<RegistryEntry>),
    /// It is in the quarantine. It may take seconds to know how its last run ended.
    Quarantined(Option<Arc<RegistryEntry>>),
}

impl LanePipeline {
    /// Reads a delivery. What cannot be read becomes a dead letter.
    pub(super) fn read(self: &Arc<Self>, delivery: Delivery, now: SystemTime) -> Option<InFlight> {
        let delivery = self.unless_passed_on(delivery)?;
        let (delivery, this) = (self.without_untrusted_headers(delivery), Arc::clone(self));
        let (fingerprint, lane) = (delivery.fingerprint(), Arc::clone(&self.lane));
        let envelope = match self.decode(&delivery, now) {
            Ok(envelope) => Arc::new(envelope),
            Err((reason, error)) => {
                self.admit_later(fingerprint, async move {
                    this.settler.dead_letter_unread(lane, delivery, reason, error).await;
                });
                return None;
            }
        };
        if envelope.content_type != ContentType::Batch {
            let span = self.spans.attempt(&envelope);
            return Some(InFlight { lane, delivery, envelope, span, batch: None });
        }
        let batch = Batch::read(&envelope, &delivery.body, &self.spans);
        // The records of a batch have spans of their own.
        let task = InFlight { lane, delivery, envelope, span: AttemptSpan::default(), batch: None };
        match batch {
            Ok(batch) => Some(InFlight { batch: Some(Arc::new(batch)), ..task }),
            Err(bad) => {
                self.admit_later(fingerprint, async move {
                    this.settler.dead_letter(task, None, DeadReason::Malformed, bad.to_string()).await;
                });
                None
            }
        }
    }

    /// Passes a message on to other programs if only these can run it.
    fn unless_passed_on(self: &Arc<Self>, delivery: Delivery) -> Option<Delivery> {
        let adapter = self.adapter.as_deref();
        let Some(queue) = adapter.and_then(|it| it.pass_on(&delivery, &self.registry)) else {
            return Some(delivery);
        };
        let (fingerprint, settler) = (delivery.fingerprint(), Arc::clone(&self.settler));
        let (lane, queue) = (Arc::clone(&self.lane), queue.to_owned());
        self.admit_later(fingerprint, async move { settler.pass_on_unchanged(lane, delivery, queue).await });
        None
    }

    /// Removes headers that only workers write if a publisher may have written them, and makes a task of a message of a
    /// client that does not know Garenne. Copies are made of what is left.
    pub(super) fn without_untrusted_headers(&self, mut delivery: Delivery) -> Delivery {
        let adapter = self.adapter.as_deref();
        let exchange = delivery.head.exchange.as_str();
        let is_published = !exchange.is_empty() && exchange != self.settler.names.shards(&self.lane);
        let origin = match adapter.and_then(|it| it.origin(&delivery)) {
            Some(origin) => origin,
            None if is_published => Origin::Publisher,
            None if self.is_quarantine => Origin::Quarantine,
            None => Origin::Lane,
        };
        if let Some((properties, ignored)) = origin.believable(&delivery.head.properties) {
            tracing::debug!(lane = %self.lane, exchange, ?ignored, "ignored headers that only workers write");
            self.count_ignored(ignored);
            delivery.set_properties(properties);
        }
        match adapter {
            Some(adapter) => adapter.as_task(delivery, origin),
            None => delivery,
        }
    }

    /// Counts headers that are not trusted.
    fn count_ignored(&self, headers: Vec<&'static str>) {
        headers.into_iter().for_each(|header| self.settler.metrics.headers_ignored(header).inc());
    }

    /// Reads the envelope of a delivery, or the reason and the error text of its dead letter.
    fn decode(&self, delivery: &Delivery, now: SystemTime) -> Result<Envelope, (DeadReason, String)> {
        if let Some(problem) = &delivery.head.unreadable {
            return Err((DeadReason::Malformed, format!("the message cannot be read: {problem}")));
        }
        let (size, max) = (delivery.body.len(), self.max_payload);
        if size > max {
            let error = format!("the body has {size} bytes, max_payload allows {max}");
            return Err((DeadReason::TooLarge, error));
        }
        if let Some(refusal) = self.adapter.as_ref().and_then(|it| it.refusal(delivery)) {
            return Err(refusal);
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
        } else if envelope.delivery_count > 0 {
            // The broker also counts returns by operators who looked at the queue.
            let looks = self.member.directives.looks_at(&self.lane, &envelope);
            envelope.delivery_count = envelope.delivery_count.saturating_sub(looks);
        }
        Ok(envelope)
    }

    /// A redelivered task is not admitted if it succeeded here before, or if it is still running here: then the new delivery
    /// replaces the lost one. A redelivered batch is admitted without the records that succeeded here.
    pub(super) fn unless_done_or_running_here(&self, mut task: InFlight) -> Option<InFlight> {
        if !task.delivery.head.redelivered {
            return Some(task);
        }
        let redeliveries = &self.settler.redeliveries;
        let has_succeeded = match task.batch.as_mut().and_then(Arc::get_mut) {
            None => redeliveries.has_succeeded(&task.envelope.id),
            Some(batch) => {
                batch.records.retain(|record| !redeliveries.has_succeeded(&record.envelope.id));
                batch.records.is_empty()
            }
        };
        if has_succeeded {
            task.delivery.settle(Settlement::Acked);
            return None;
        }
        if task.batch.is_none() {
            task.delivery = redeliveries.replace_lost(&task.envelope.id, task.delivery)?;
        }
        Some(task)
    }

    /// Whether a task, or a batch, may run now: the checks of its expiry, directives, due time, handler, history and key.
    /// Returns its handler, and the place that it has taken among the tasks of its key.
    pub(super) fn check(
        &self,
        task: &InFlight,
        now: SystemTime,
    ) -> Result<(Arc<RegistryEntry>, Option<KeyPlace>), NotNow> {
        let envelope = &task.envelope;
        if envelope.expired(now) {
            return Err(NotNow::Dead(DeadReason::Expired, "expired before it started"));
        }
        match self.member.directives.effect_on(envelope, self.pausing_lane(envelope).as_deref(), now) {
            Some(DirectiveEffect::Deferred(wait)) => return Err(NotNow::Deferred(wait)),
            // The quarantine is consumed while the task's lane is not.
            Some(DirectiveEffect::LanePaused) if self.is_quarantine => {
                return Err(NotNow::Deferred(Duration::ZERO));
            }
            Some(DirectiveEffect::LanePaused) => return Err(NotNow::LanePaused),
            // A stop of a batch's group is checked for each record before it starts.
            Some(DirectiveEffect::Stopped) if task.batch.is_none() => {
                return Err(NotNow::Dead(DeadReason::Stopped, "stopped by an operator"));
            }
            Some(DirectiveEffect::Stopped) | None => {}
        }
        if let Some(wait) = envelope.due_in(now) {
            return Err(NotNow::Deferred(wait));
        }
        let entry = self.registry.get(envelope.kind.as_str()).cloned();
        if self.is_quarantine {
            return Err(NotNow::Quarantined(entry));
        }
        let entry = entry.ok_or(NotNow::Unhandled)?;
        self.settler.end_wait(task);
        if !entry.options.is_ready() {
            return Err(NotNow::NotReady);
        }
        if task.batch.is_some() && entry.options.deadline.is_some() {
            return Err(NotNow::Divided);
        }
        if quarantine::is_suspicious(envelope) {
            return Err(NotNow::Suspicious(entry));
        }
        let place = self.key_limits.take(&task.delivery, envelope, &entry.options);
        let place = place.map_err(|NoPlace| NotNow::Deferred(DEFERRAL))?;
        Ok((entry, place))
    }

    /// The lane whose pause applies to a task: this one, or in the quarantine the lane that the task is from.
    pub(super) fn pausing_lane(&self, task: &Envelope) -> Option<Arc<str>> {
        if self.is_quarantine { task.lane.as_deref().map(Into::into) } else { Some(Arc::clone(&self.lane)) }
    }

    /// Continues the admission of a message in the background. A panic there counts like one in
    /// [`admit`](Self::admit).
    pub(super) fn admit_later(
        self: &Arc<Self>,
        fingerprint: Option<u64>,
        step: impl Future<Output = ()> + Send + 'static,
    ) {
        let (this, step) = (Arc::clone(self), supervise::isolated("admission", step));
        self.settler.in_background("admission", async move {
            if let (Err(failure), Some(message)) = (step.await, fingerprint) {
                this.admission_panics.record(message, &failure.to_string());
            }
        });
    }

    /// Dead-letters the task, or each record of the batch.
    pub(super) async fn dead_letter(&self, task: InFlight, reason: DeadReason, error: &str) {
        let dead_letter = |settler: Arc<Settler>, task| {
            let error = error.to_owned();
            async move { settler.dead_letter(task, None, reason, error).await }
        };
        self.settler.settle_each(task, dead_letter).await;
    }
}

#[cfg(test)]
mod tests {
    use garenne_common::clock;
    use garenne_protocol::{
        amqp::{BasicProperties, FieldTable},
        task::{Directive, epoch_ms, header},
    };

    use super::*;
    use crate::pipeline::quarantine::tests::{env, lane_env, long_kind};

    #[tokio::test]
    async fn the_attempts_of_a_copy_are_believed_in_a_lane_with_several_queues_and_those_of_a_publisher_are_not()
     {
        let env = lane_env().await;
        let attempt_through = |exchange: &str| {
            let mut delivery = Delivery::mock(&env.test.generation, 1, b"{}");
            delivery.head_mut().exchange = exchange.into();
            let mut headers = FieldTable::default();
            headers.insert(header::ATTEMPT.into(), 2.into());
            delivery.set_properties(BasicProperties::default().with_headers(headers));
            let delivery = env.pipeline.without_untrusted_headers(delivery);
            header::get(delivery.head.properties.headers(), header::ATTEMPT).and_then(header::integer)
        };
        let names = &env.test.settler.names;
        assert_eq!(attempt_through(&names.shards("fast")), Some(2));
        assert_eq!(attempt_through(&names.shards("other")), None);
        assert_eq!(attempt_through(&names.tasks()), None);
    }

    /// The quarantine is consumed while the lane is paused, and would deliver it again at once.
    #[tokio::test]
    async fn a_quarantined_task_of_a_paused_lane_is_deferred_and_a_task_in_the_lane_is_handed_back() {
        for (env, is_quarantine) in [(env().await, true), (lane_env().await, false)] {
            let now = clock::now();
            let pause = Directive::PauseLane { pause_lane: "fast".into(), at: epoch_ms(now) };
            env.pipeline.member.directives.apply(&pause);
            let envelope = Envelope { lane: Some("fast".into()), ..Envelope::clone(&env.test.envelope) };
            let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"));
            let task = InFlight { envelope: Arc::new(envelope), ..task };
            match env.pipeline.check(&task, now) {
                Err(NotNow::Deferred(Duration::ZERO)) => assert!(is_quarantine),
                Err(NotNow::LanePaused) => assert!(!is_quarantine),
                _ => panic!("the lane is paused"),
            }
        }
    }

    /// On the first delivery its publisher wrote the count.
    #[tokio::test]
    async fn only_redeliveries_that_no_look_of_an_operator_explains_count_as_returns() {
        let (env, now) = (lane_env().await, clock::now());
        let returns = |redelivered: bool| {
            let mut delivery = Delivery::mock(&env.test.generation, 1, b"{}");
            delivery.head_mut().redelivered = redelivered;
            let mut headers = FieldTable::default();
            headers.insert("x-delivery-count".into(), 5.into());
            let properties = BasicProperties::default().with_type("any.thing".into());
            delivery.set_properties(properties.with_headers(headers));
            env.pipeline.decode(&delivery, now).unwrap().returns()
        };
        assert_eq!((returns(false), returns(true)), (0, 5));
        for (look, at) in [("fast", 1), ("fast", 2), ("fast", 3), ("other", 4)] {
            env.pipeline.member.directives.apply(&Directive::Look { look: look.into(), at });
        }
        assert_eq!((returns(false), returns(true)), (0, 2));
    }

    /// One after the other, long tasks could reach the consumer timeout.
    #[tokio::test]
    async fn a_batch_of_a_long_kind_is_divided_and_a_task_of_it_runs() {
        let mut env = lane_env().await;
        Arc::get_mut(&mut env.pipeline).unwrap().registry = long_kind();
        let (now, batch) = (clock::now(), env.test.batch_of(&["a", "b"]));
        assert!(matches!(env.pipeline.check(&batch, now), Err(NotNow::Divided)));
        let task = env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"));
        assert!(env.pipeline.check(&task, now).is_ok());
    }

    /// Its records may belong to other groups.
    #[tokio::test]
    async fn the_stop_of_a_group_ends_a_task_before_it_starts_and_leaves_a_batch_to_its_records() {
        let (env, now) = (lane_env().await, clock::now());
        let stop = Directive::StopGroup { group: "import".into(), at: epoch_ms(now) };
        env.pipeline.member.directives.apply(&stop);
        let is_admitted = |task: InFlight| {
            let group = Some("import".to_owned());
            let envelope = Envelope { group, ..Envelope::clone(&task.envelope) };
            match env.pipeline.check(&InFlight { envelope: Arc::new(envelope), ..task }, now) {
                Ok(_) => true,
                Err(NotNow::Dead(DeadReason::Stopped, _)) => false,
                Err(_) => panic!("only the stop keeps it from starting"),
            }
        };
        assert!(!is_admitted(env.test.task_of(Delivery::mock(&env.test.generation, 1, b"{}"))));
        assert!(is_admitted(env.test.batch_of(&["a", "b"])));
    }
}
