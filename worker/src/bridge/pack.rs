//! A lane's pipeline for packs: one delivery, one place in the pool, and a settlement for each record.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{shutdown::Settlement, telemetry::metrics::TaskOutcome};
use garenne_pool::{Ending, Spec};
use garenne_protocol::task::{DeadReason, Envelope};

use super::{Bridge, Job, Ready, Run, SUSPICIOUS_DEATHS, SUSPICIOUS_RETURNS, Suspect};
use crate::{
    consumer::Delivery,
    fleet::Word,
    pack::{Ends, PackAttempt, PackEnd, Record},
    registry::Entry,
    spans::AttemptSpan,
    work::Work,
};

/// A pack's half that stays with us while the pool runs its records.
pub(crate) struct PackJob {
    pub(super) bridge: Arc<Bridge>,
    delivery: Delivery,
    records: Arc<[Record]>,
    entry: Arc<Entry>,
    ends: Ends,
    run: Option<Run>,
}

impl PackJob {
    pub(super) fn complete(mut self, ending: Ending<()>) {
        let (bridge, run) = (Arc::clone(&self.bridge), self.run.take());
        bridge.end_run(run, move || self.settle(ending));
    }

    fn settle(self, ending: Ending<()>) {
        match PackEnd::of(ending, self.records.len(), &self.ends) {
            PackEnd::Apart(ends) => {
                let Self { bridge, delivery, records, entry, .. } = self;
                let clerk = Arc::clone(&bridge.clerk);
                for ((delivery, record), end) in shares(delivery, &records).zip(ends) {
                    let (envelope, span) = (Arc::clone(&record.envelope), record.span.clone());
                    let envelope = match end.attempt {
                        // It hung once: it must not hold a place without end when it runs alone.
                        Some(TaskOutcome::Timeout) => {
                            let timeout = Some(envelope.timeout.unwrap_or(bridge.pack_time));
                            Arc::new(Envelope { timeout, ..Envelope::clone(&envelope) })
                        }
                        _ => envelope,
                    };
                    clerk.settle(&bridge.lane, delivery, envelope, &entry, end, span);
                }
            }
            PackEnd::Back { ran } => self.hand_back(ran),
            PackEnd::Abandon => {
                self.entry.metrics.counted(TaskOutcome::Interrupted);
                self.records.iter().for_each(|record| record.span.settled(Settlement::Abandoned, None));
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
        self.records.iter().for_each(|record| record.span.settled(Settlement::Requeued, None));
        let (bridge, run) = (Arc::clone(&self.bridge), self.run.take());
        bridge.end_run(run, move || drop(self.delivery));
    }
}

/// A share of the pack's delivery for each of its records.
fn shares(delivery: Delivery, records: &[Record]) -> impl Iterator<Item = (Delivery, &Record)> {
    let payloads = records.iter().map(|record| record.payload.clone());
    delivery.divide(payloads).zip(records)
}

impl Bridge {
    /// Takes a pack. As a whole it can only be malformed; whatever else keeps its records from running
    /// is said of each of them.
    pub(super) fn read_pack(
        self: &Arc<Self>,
        delivery: Delivery,
        pack: Arc<Envelope>,
        now: SystemTime,
    ) -> Option<Ready> {
        let mut records = match Record::read_all(&pack, &delivery.body, &self.spans) {
            Ok(records) => records,
            Err(bad) => {
                let error = bad.to_string();
                let span = AttemptSpan::default();
                self.clerk.dead(&self.lane, delivery, Some(pack), DeadReason::Malformed, error, &span);
                return None;
            }
        };
        if delivery.redelivered {
            records.retain(|record| !self.clerk.loans.is_done(&record.envelope.id));
            if records.is_empty() {
                delivery.settle(Settlement::Acked);
                return None;
            }
        }
        if pack.expired(now) {
            self.all_dead(delivery, &records, DeadReason::Expired, "expired before it started");
            return None;
        }
        let paused = match self.member.orders().word(&pack, now) {
            Some(Word::PutOff(wait)) => Some(wait),
            // A stop is said of each record when its turn comes.
            Some(Word::Stopped) | None => None,
        };
        if let Some(wait) = paused.or_else(|| pack.due_in(now)) {
            self.clerk.put_off(&self.lane, delivery, &pack, wait);
            return None;
        }
        let entry = self.registry.get(pack.kind.as_str()).cloned();
        if self.quarantine {
            let (this, suspect) = (Arc::clone(self), Suspect::Pack(pack, Arc::from(records)));
            self.clerk.tracker.spawn(async move { this.quarantined(delivery, suspect, entry).await });
            return None;
        }
        let Some(entry) = entry else {
            let error = format!("no handler for kind {:?}", pack.kind.as_str());
            self.all_dead(delivery, &records, DeadReason::UnknownKind, &error);
            return None;
        };
        if entry.options.deadline.is_some() {
            // A long task needs a place, a deadline and a delivery of its own. Through the ladder: the
            // lane's own queue may be full of packs that wait for room in it.
            for (delivery, record) in shares(delivery, &records) {
                self.clerk.put_off(&self.lane, delivery, &record.envelope, Duration::ZERO);
            }
            return None;
        }
        let records = Arc::from(records);
        if pack.delivery_count >= SUSPICIOUS_RETURNS {
            let this = Arc::clone(self);
            self.clerk.tracker.spawn(async move { this.examine_pack(delivery, pack, records, entry).await });
            return None;
        }
        Some(self.ready_pack(delivery, pack, records, entry, None))
    }

    /// Takes a pack with a record that may crash its worker.
    async fn examine_pack(
        self: Arc<Self>,
        delivery: Delivery,
        pack: Arc<Envelope>,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
    ) {
        if self.member.unclean_deaths().await >= SUSPICIOUS_DEATHS {
            return self.clerk.quarantine(&self.lane, delivery, &pack);
        }
        let ready = self.ready_pack(delivery, pack, records, entry, None);
        self.enter(VecDeque::from([ready])).await;
    }

    pub(super) fn ready_pack(
        self: &Arc<Self>,
        delivery: Delivery,
        pack: Arc<Envelope>,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
        run: Option<Run>,
    ) -> Ready {
        // Long as the pool sees it, so that a stop reaches it between two records.
        let mut spec = Spec::long(pack.id.shared()).deadline(self.pack_time);
        if entry.options.cpu_bound {
            spec = spec.on_threads();
        }
        if let Some(group) = &pack.group {
            spec = spec.group(group.as_str());
        }
        self.packs.note(&records);
        self.member.note_grouped(&pack);
        let ends = Ends::default();
        let attempt = PackAttempt {
            entry: Arc::clone(&entry),
            worker: Arc::clone(&self.worker),
            surroundings: self.surroundings.clone(),
            records: Arc::clone(&records),
            epoch: delivery.epoch(),
            orders: Arc::clone(self.member.orders()),
            ends: ends.clone(),
        };
        let job = Job::Pack(PackJob { bridge: Arc::clone(self), delivery, records, entry, ends, run });
        (spec, Work::Pack(attempt), job)
    }

    pub(super) fn all_dead(&self, delivery: Delivery, records: &[Record], reason: DeadReason, error: &str) {
        for (delivery, record) in shares(delivery, records) {
            let envelope = Some(Arc::clone(&record.envelope));
            self.clerk.dead(&self.lane, delivery, envelope, reason, error.to_owned(), &record.span);
        }
    }

    /// Takes a pack apart, so that each record is judged by its own runs.
    pub(super) fn quarantine_all(&self, delivery: Delivery, pack: &Envelope, records: &[Record]) {
        let lane = pack.lane.as_deref().map_or_else(|| Arc::clone(&self.lane), Arc::from);
        for (delivery, record) in shares(delivery, records) {
            self.clerk.quarantine(&lane, delivery, &record.envelope);
        }
    }
}
