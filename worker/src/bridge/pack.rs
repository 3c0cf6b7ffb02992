//! A lane's pipeline for packs: one delivery, one place in the pool, and a settlement for each record.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{
    pool::{Ending, Spec},
    shutdown::Fate,
    task::{DeadReason, Envelope},
    telemetry::metrics::TaskOutcome,
};

use super::{Bridge, Job, Ready, SUSPICIOUS_DEATHS, SUSPICIOUS_RETURNS};
use crate::{
    consumer::Delivery,
    execute::End,
    fleet::Word,
    pack::{PackAttempt, PackEnd, Record},
    registry::Entry,
    spans::AttemptSpan,
    work::Work,
};

/// A pack's half that stays with us while the pool runs its records.
pub(crate) struct PackJob {
    pub(super) bridge: Arc<Bridge>,
    delivery: Delivery,
    pack: Arc<Envelope>,
    records: Arc<[Record]>,
    entry: Arc<Entry>,
}

impl PackJob {
    pub(super) fn complete(self, ending: Ending<Vec<End>>) {
        match PackEnd::of(ending, self.records.len()) {
            PackEnd::Apart(ends) => {
                let Self { bridge, delivery, records, entry, .. } = self;
                let clerk = Arc::clone(&bridge.clerk);
                for ((delivery, record), end) in shares(delivery, &records).zip(ends) {
                    let (envelope, span) = (Arc::clone(&record.envelope), record.span.clone());
                    clerk.settle(&bridge.lane, delivery, envelope, &entry, end, span);
                }
            }
            PackEnd::Back { ran } => self.hand_back(ran),
            PackEnd::Abandon => {
                self.entry.metrics.counted(TaskOutcome::Interrupted);
                self.records.iter().for_each(|record| record.span.settled(Fate::Abandoned, None));
                self.delivery.settle(Fate::Abandoned);
            }
        }
    }

    /// Gives all of it back, and with it the results of those that ran.
    pub(super) fn hand_back(self, ran: usize) {
        (0..ran).for_each(|_| self.entry.metrics.counted(TaskOutcome::Interrupted));
        self.records.iter().for_each(|record| record.span.settled(Fate::Requeued, None));
        self.bridge.clerk.hand_back(self.delivery, &self.pack);
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
                delivery.settle(Fate::Acked);
                return None;
            }
        }
        if pack.expired(now) {
            self.all_dead(delivery, &records, DeadReason::Expired, "expired before it started");
            return None;
        }
        let Some(entry) = self.registry.get(pack.kind.as_str()).cloned() else {
            let error = format!("no handler for kind {:?}", pack.kind.as_str());
            self.all_dead(delivery, &records, DeadReason::UnknownKind, &error);
            return None;
        };
        let paused = match self.member.orders().word(&pack, now) {
            Some(Word::PutOff(wait)) => Some(wait),
            // A stop is said of each record when its turn comes.
            Some(Word::Stopped) | None => None,
        };
        if let Some(wait) = paused.or_else(|| pack.due_in(now)) {
            self.clerk.put_off(&self.lane, delivery, &pack, wait);
            return None;
        }
        if entry.options.deadline.is_some() && !self.quarantine {
            // A long task needs a place, a deadline and a delivery of its own. Through the ladder: the
            // lane's own queue may be full of packs that wait for room in it.
            for (delivery, record) in shares(delivery, &records) {
                self.clerk.put_off(&self.lane, delivery, &record.envelope, Duration::ZERO);
            }
            return None;
        }
        let records = Arc::from(records);
        if self.quarantine || pack.delivery_count >= SUSPICIOUS_RETURNS {
            let this = Arc::clone(self);
            self.clerk.tracker.spawn(async move { this.examine_pack(delivery, pack, records, entry).await });
            return None;
        }
        Some(self.ready_pack(delivery, pack, records, entry))
    }

    /// Takes a pack with a record that may kill its worker. Alone in the suspect queue it runs as a pack
    /// first, which clears the packs that only happened to be near; one whose run alone ended in a
    /// death is taken apart, and each record is examined by itself.
    async fn examine_pack(
        self: Arc<Self>,
        delivery: Delivery,
        pack: Arc<Envelope>,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
    ) {
        if !self.quarantine {
            if self.member.unclean_deaths().await >= SUSPICIOUS_DEATHS {
                return self.clerk.suspect(&self.lane, delivery, &pack);
            }
        } else if entry.options.deadline.is_some() {
            return self.all_suspect(delivery, &pack, &records);
        } else if !pack.suspect_armed {
            return self.clerk.arm(delivery, &pack);
        } else if delivery.redelivered && self.member.unclean_deaths().await > 0 {
            return self.all_suspect(delivery, &pack, &records);
        }
        let ready = self.ready_pack(delivery, pack, records, entry);
        self.enter(VecDeque::from([ready])).await;
    }

    fn ready_pack(
        self: &Arc<Self>,
        delivery: Delivery,
        pack: Arc<Envelope>,
        records: Arc<[Record]>,
        entry: Arc<Entry>,
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
        let attempt = PackAttempt {
            entry: Arc::clone(&entry),
            worker: Arc::clone(&self.worker),
            surroundings: self.surroundings.clone(),
            records: Arc::clone(&records),
            epoch: delivery.epoch(),
            orders: Arc::clone(self.member.orders()),
        };
        let job = Job::Pack(PackJob { bridge: Arc::clone(self), delivery, pack, records, entry });
        (spec, Work::Pack(attempt), job)
    }

    fn all_dead(&self, delivery: Delivery, records: &[Record], reason: DeadReason, error: &str) {
        for (delivery, record) in shares(delivery, records) {
            let envelope = Some(Arc::clone(&record.envelope));
            self.clerk.dead(&self.lane, delivery, envelope, reason, error.to_owned(), &record.span);
        }
    }

    fn all_suspect(&self, delivery: Delivery, pack: &Envelope, records: &[Record]) {
        let lane = pack.lane.as_deref().map_or_else(|| Arc::clone(&self.lane), Arc::from);
        for (delivery, record) in shares(delivery, records) {
            // The runs so far were the pack's and speak against no record.
            let alone = Envelope { suspect_runs: 0, ..Envelope::clone(&record.envelope) };
            self.clerk.suspect(&lane, delivery, &alone);
        }
    }
}
