//! From a delivery to its settlement, for one lane: read it, check it, queue it in the pool, and act
//! on what becomes of it.

use std::{sync::Arc, time::SystemTime};

use garenne_common::{
    pool::{Completion, Ending, Pool, Refusal, Refused, Spec},
    shutdown::Fate,
    task::{DeadReason, Envelope},
};
use tokio::sync::Notify;

use crate::{
    clerk::Clerk,
    consumer::Delivery,
    execute::{Attempt, End, Ran},
    fleet::Member,
    loans::Loan,
    registry::{Entry, Registry},
};

/// Returns that make a task suspicious, and unclean deaths that must have happened for it.
const SUSPICIOUS_RETURNS: u32 = 2;
const SUSPICIOUS_DEATHS: usize = 2;
/// Marked runs alone that ended with an unclean death.
const POISONOUS_RUNS: u32 = 2;

/// A lane's pipeline.
pub(crate) struct Bridge {
    pub(crate) lane: Arc<str>,
    pub(crate) default_kind: Option<String>,
    pub(crate) max_payload: usize,
    pub(crate) worker: Arc<str>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) pool: Pool<Attempt, Job>,
    pub(crate) clerk: Arc<Clerk>,
    pub(crate) member: Arc<Member>,
    /// Whether this is the suspect queue, where each task runs alone and its start is marked first.
    pub(crate) quarantine: bool,
    /// Told whenever a place in the pool gets free.
    pub(crate) room: Notify,
}

/// The half of a task that stays with us while the pool has the other: the loan to settle.
pub(crate) struct Job {
    bridge: Arc<Bridge>,
    hold: Hold,
    envelope: Arc<Envelope>,
    entry: Arc<Entry>,
}

/// How the delivery is held while its task waits and runs.
enum Hold {
    /// A short task's: nobody else knows of it.
    Own(Delivery),
    /// A long task's: renewed when the message comes back while it runs.
    Loan(Loan),
}

impl Job {
    /// The delivery to settle. A loan is empty only after it was taken once.
    fn take_delivery(hold: Hold, bridge: &Bridge, envelope: &Envelope) -> Option<Delivery> {
        match hold {
            Hold::Own(delivery) => Some(delivery),
            Hold::Loan(loan) => bridge.clerk.loans.end(&envelope.id, &loan),
        }
    }
}

impl Completion<Ran> for Job {
    fn complete(self, ending: Ending<Ran>) {
        self.bridge.room.notify_one();
        let Self { bridge, hold, envelope, entry } = self;
        let Some(delivery) = Self::take_delivery(hold, &bridge, &envelope) else { return };
        let clerk = Arc::clone(&bridge.clerk);
        clerk.settle(&bridge.lane, delivery, envelope, &entry, End::of(ending));
    }
}

impl Bridge {
    /// Takes a delivery. Returns once the pool has it or it is on its way back; a pool that is full
    /// (with tasks of a channel that died) is waited for.
    pub(crate) async fn accept(self: &Arc<Self>, delivery: Delivery) {
        let now = SystemTime::now();
        let dead = |delivery, envelope, reason, error| {
            self.clerk.dead(&self.lane, delivery, envelope, reason, error);
        };
        if delivery.body.len() > self.max_payload {
            let (size, max) = (delivery.body.len(), self.max_payload);
            let error = format!("the body has {size} bytes, max_payload allows {max}");
            return dead(delivery, None, DeadReason::TooLarge, error);
        }
        let known = |kind: &str| self.registry.get(kind).is_some();
        let default_kind = self.default_kind.as_deref();
        let read = Envelope::read(&delivery.routing_key, &delivery.properties, default_kind, known, now);
        let envelope = match read {
            Ok(envelope) => Arc::new(envelope),
            Err(malformed) => return dead(delivery, None, DeadReason::Malformed, malformed.to_string()),
        };
        let delivery = if delivery.redelivered {
            if self.clerk.loans.is_done(&envelope.id) {
                return delivery.settle(Fate::Acked);
            }
            match self.clerk.loans.renew(&envelope.id, delivery) {
                Ok(()) => return,
                Err(delivery) => delivery,
            }
        } else {
            delivery
        };
        if envelope.expired(now) {
            return dead(delivery, Some(envelope), DeadReason::Expired, "expired before it started".into());
        }
        if self.member.is_stopped(&envelope) {
            return dead(delivery, Some(envelope), DeadReason::Stopped, "stopped by an operator".into());
        }
        let Some(entry) = self.registry.get(envelope.kind.as_str()).cloned() else {
            let error = format!("no handler for kind {:?}", envelope.kind.as_str());
            return dead(delivery, Some(envelope), DeadReason::UnknownKind, error);
        };
        if let Some(wait) = envelope.due_in(now) {
            return self.clerk.put_off(&self.lane, delivery, &envelope, wait);
        }
        if self.quarantine || envelope.delivery_count >= SUSPICIOUS_RETURNS {
            // Finding out takes a moment, in which the others go on.
            let this = Arc::clone(self);
            self.clerk.tracker.spawn(async move { this.examine(delivery, envelope, entry).await });
            return;
        }
        self.submit(delivery, envelope, entry).await;
    }

    /// Takes a task that may kill its worker. In its lane it goes to the suspect queue if it came
    /// back often enough and workers died uncleanly; in the suspect queue its start is marked before
    /// it runs, and a mark that was there already speaks against it.
    async fn examine(self: Arc<Self>, delivery: Delivery, envelope: Arc<Envelope>, entry: Arc<Entry>) {
        if !self.quarantine {
            if self.member.unclean_deaths().await >= SUSPICIOUS_DEATHS {
                return self.clerk.suspect(&self.lane, delivery, &envelope);
            }
        } else if !envelope.suspect_armed {
            return self.clerk.arm(delivery, &envelope);
        } else if delivery.redelivered && self.member.unclean_deaths().await > 0 {
            if envelope.suspect_runs >= POISONOUS_RUNS {
                let runs = envelope.suspect_runs;
                let error = format!("its worker died in each of {runs} runs alone");
                return self.clerk.dead(&self.lane, delivery, Some(envelope), DeadReason::Poison, error);
            }
            return self.clerk.arm(delivery, &envelope);
        }
        self.submit(delivery, envelope, entry).await;
    }

    async fn submit(self: &Arc<Self>, delivery: Delivery, envelope: Arc<Envelope>, entry: Arc<Entry>) {
        let mut spec = Spec::short(envelope.id.shared());
        if let Some(most) = entry.options.deadline {
            spec = spec.deadline(envelope.timeout.map_or(most, |asked| asked.min(most)));
        }
        if entry.options.cpu_bound {
            spec = spec.on_threads();
        }
        if let Some(group) = &envelope.group {
            spec = spec.group(group.as_str());
        }
        let mut task = Attempt {
            entry: Arc::clone(&entry),
            envelope: Arc::clone(&envelope),
            worker: Arc::clone(&self.worker),
            body: delivery.body.clone(),
            epoch: delivery.epoch(),
        };
        let hold = match entry.options.deadline {
            Some(_) => Hold::Loan(self.clerk.loans.lend(&envelope.id, delivery)),
            None => Hold::Own(delivery),
        };
        let mut job = Job { bridge: Arc::clone(self), hold, envelope, entry };
        loop {
            let room = self.room.notified();
            match self.pool.submit_detached(spec.clone(), task, job) {
                Ok(()) => return,
                Err(Refused { reason: Refusal::QueueFull { .. }, task: (back, completion) }) => {
                    (task, job) = (back, completion);
                    room.await;
                }
                Err(Refused { task: (_, job), .. }) => {
                    let Job { hold, envelope, .. } = job;
                    if let Some(delivery) = Job::take_delivery(hold, self, &envelope) {
                        self.clerk.hand_back(delivery, &envelope);
                    }
                    return;
                }
            }
        }
    }
}
