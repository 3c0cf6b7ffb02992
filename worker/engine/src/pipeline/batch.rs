//! A lane's pipeline for batches: one delivery, one place in the pool, and a settlement for each record.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{shutdown::Settlement, telemetry::metrics::TaskOutcome};
use garenne_pool::{Ending, Spec};
use garenne_protocol::task::{DeadReason, Envelope};

use super::{
    InFlight, LanePipeline, QuarantineRun, Quarantined, Ready, SUSPICIOUS_DEATHS, SUSPICIOUS_RETURNS,
};
use crate::{
    batch::{AttemptEnds, BatchAttempt, BatchEnd, Record},
    consumer::Delivery,
    execution::Execution,
    fleet::DirectiveEffect,
    registry::Entry,
    spans::AttemptSpan,
};

/// A batch's half that stays with us while the pool runs its records.
pub(crate) struct InFlightBatch {
    pub(super) pipeline: Arc<LanePipeline>,
    delivery: Delivery,
    records: Arc<[Record]>,
    entry: Arc<Entry>,
    ends: AttemptEnds,
    run: Option<QuarantineRun>,
}

impl InFlightBatch {
    pub(super) fn complete(mut self, ending: Ending<()>) {
        let (pipeline, run) = (Arc::clone(&self.pipeline), self.run.take());
        pipeline.end_run(run, move || self.settle(ending));
    }

    fn settle(self, ending: Ending<()>) {
        match BatchEnd::of(ending, self.records.len(), &self.ends) {
            BatchEnd::Apart(ends) => {
                let Self { pipeline, delivery, records, entry, .. } = self;
                let settler = Arc::clone(&pipeline.settler);
                for ((delivery, record), end) in shares(delivery, &records).zip(ends) {
                    let (envelope, span) = (Arc::clone(&record.envelope), record.span.clone());
                    let envelope = match end.attempt {
                        // It hung once: it must not hold a place without end when it runs alone.
                        Some(TaskOutcome::Timeout) => {
                            let timeout = Some(envelope.timeout.unwrap_or(pipeline.pack_time));
                            Arc::new(Envelope { timeout, ..Envelope::clone(&envelope) })
                        }
                        _ => envelope,
                    };
                    settler.settle(&pipeline.lane, delivery, envelope, &entry, end, span);
                }
            }
            BatchEnd::Back { ran } => self.hand_back(ran),
            BatchEnd::Abandon => {
                self.entry.metrics.counted(TaskOutcome::Interrupted);
                self.records.iter().for_each(|record| record.span.end(Settlement::Abandoned, None));
                self.delivery.settle(Settlement::Abandoned);
            }
        }
    }

    /// Whether its settlement can still reach the broker.
    pub(super) fn alive(&self) -> bool {
        self.delivery.alive()
    }

    /// Gives all of it back, and with it the results of those that ran.
    pub(super) fn hand_back(mut self, ran: usize) {
        (0..ran).for_each(|_| self.entry.metrics.counted(TaskOutcome::Interrupted));
        self.records.iter().for_each(|record| record.span.end(Settlement::Requeued, None));
        let (pipeline, run) = (Arc::clone(&self.pipeline), self.run.take());
        pipeline.end_run(run, move || drop(self.delivery));
    }
}

/// A share of the batch's delivery for each of its records.
fn shares(delivery: Delivery, records: &[Record]) -> impl Iterator<Item = (Delivery, &Record)> {
    let payloads = records.iter().map(|record| record.payload.clone());
    delivery.split(payloads).zip(records)
}

impl LanePipeline {
    /// Takes a batch. As a whole it can only be malformed; whatever else keeps its records from running
    /// is said of each of them.
    pub(super) fn read_pack(
        self: &Arc<Self>,
        delivery: Delivery,
        batch: Arc<Envelope>,
        now: SystemTime,
    ) -> Option<Ready> {
        let mut records = match Record::read_all(&batch, &delivery.body, &self.spans) {
            Ok(records) => records,
            Err(bad) => {
                let error = bad.to_string();
                let span = AttemptSpan::default();
                self.settler.dead(&self.lane, delivery, Some(batch), DeadReason::Malformed, error, &span);
                return None;
            }
        };
        if delivery.redelivered {
            records.retain(|record| !self.settler.redeliveries.has_succeeded(&record.envelope.id));
            if records.is_empty() {
                delivery.settle(Settlement::Acked);
                return None;
            }
        }
        if batch.expired(now) {
            self.all_dead(delivery, &records, DeadReason::Expired, "expired before it started");
            return None;
        }
        let paused = match self.member.directives().effect_on(&batch, now) {
            Some(DirectiveEffect::Deferred(wait)) => Some(wait),
            // A stop is said of each record when its turn comes.
            Some(DirectiveEffect::Stopped) | None => None,
        };
        if let Some(wait) = paused.or_else(|| batch.due_in(now)) {
            self.settler.put_off(&self.lane, delivery, &batch, wait);
            return None;
        }
        let entry = self.registry.get(batch.kind.as_str()).cloned();
        if self.quarantine {
            let (this, suspect) = (Arc::clone(self), Quarantined::Pack(batch, Arc::from(records)));
            self.settler.tracker.spawn(async move { this.quarantined(delivery, suspect, entry).await });
            return None;
        }
        let Some(entry) = entry else {
            let error = format!("no handler for kind {:?}", batch.kind.as_str());
            self.all_dead(delivery, &records, DeadReason::UnknownKind, &error);
            return None;
        };
        if entry.options.deadline.is_some() {
            // A long task needs a place, a deadline and a delivery of its own. Through the ladder: the
            // lane's own queue may be full of batches that wait for room in it.
            for (delivery, record) in shares(delivery, &records) {
                self.settler.put_off(&self.lane, delivery, &record.envelope, Duration::ZERO);
            }
            return None;
        }
        let records = Arc::from(records);
        if batch.delivery_count >= SUSPICIOUS_RETURNS {
            let this = Arc::clone(self);
            self.settler
                .tracker
                .spawn(async move { this.examine_batch(delivery, batch, records, entry).await });
            return None;
        }
        Some(self.ready_pack(delivery, batch, records, entry, None))
    }

    /// Takes a batch with a record that may crash its worker.
    async fn examine_batch(
        self: Arc<Self>,
        delivery: Delivery,
        batch: Arc<Envelope>,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
    ) {
        if self.member.recent_crashes().await >= SUSPICIOUS_DEATHS {
            return self.settler.quarantine(&self.lane, delivery, &batch);
        }
        let ready = self.ready_pack(delivery, batch, records, entry, None);
        self.enter(VecDeque::from([ready])).await;
    }

    pub(super) fn ready_pack(
        self: &Arc<Self>,
        delivery: Delivery,
        batch: Arc<Envelope>,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
        run: Option<QuarantineRun>,
    ) -> Ready {
        // Long as the pool sees it, so that a stop reaches it between two records.
        let mut spec = Spec::long(batch.id.shared()).deadline(self.pack_time);
        if entry.options.cpu_bound {
            spec = spec.on_threads();
        }
        if let Some(group) = &batch.group {
            spec = spec.group(group.as_str());
        }
        self.batches.note(&records);
        self.member.track_grouped(&batch);
        let ends = AttemptEnds::default();
        let attempt = BatchAttempt {
            entry: Arc::clone(&entry),
            worker: Arc::clone(&self.worker),
            worker_context: self.worker_context.clone(),
            records: Arc::clone(&records),
            generation: delivery.generation(),
            directives: Arc::clone(self.member.directives()),
            ends: ends.clone(),
        };
        let job =
            InFlight::Pack(InFlightBatch { pipeline: Arc::clone(self), delivery, records, entry, ends, run });
        (spec, Execution::Pack(attempt), job)
    }

    pub(super) fn all_dead(&self, delivery: Delivery, records: &[Record], reason: DeadReason, error: &str) {
        for (delivery, record) in shares(delivery, records) {
            let envelope = Some(Arc::clone(&record.envelope));
            self.settler.dead(&self.lane, delivery, envelope, reason, error.to_owned(), &record.span);
        }
    }

    /// Takes a batch apart, so that each record is judged by its own runs.
    pub(super) fn quarantine_all(&self, delivery: Delivery, batch: &Envelope, records: &[Record]) {
        let lane = batch.lane.as_deref().map_or_else(|| Arc::clone(&self.lane), Arc::from);
        for (delivery, record) in shares(delivery, records) {
            self.settler.quarantine(&lane, delivery, &record.envelope);
        }
    }
}
