//! From a delivery to its settlement, for one lane: read it, check it, queue it in the pool, and act
//! on what becomes of it.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::{
    pool::{Completion, Ending, Refusal, Spec},
    shutdown::Fate,
    task::{ContentType, DeadReason, Envelope},
};
use tokio::sync::Notify;

use crate::{
    clerk::Clerk,
    consumer::Delivery,
    execute::{Attempt, End},
    fleet::{Member, Word},
    handler::Surroundings,
    loans::Loan,
    pack::Packs,
    registry::{Entry, Registry},
    spans::{AttemptSpan, Spans},
    work::{LanePool, Work, Yield},
};

mod pack;

use pack::PackJob;

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
    pub(crate) surroundings: Surroundings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) pool: LanePool,
    pub(crate) clerk: Arc<Clerk>,
    pub(crate) member: Arc<Member>,
    /// Every pack of this worker.
    pub(crate) packs: Arc<Packs>,
    pub(crate) spans: Arc<Spans>,
    /// How long the records of one may run.
    pub(crate) pack_time: Duration,
    /// Whether this is the suspect queue, where each task runs alone and its start is marked first.
    pub(crate) quarantine: bool,
    /// Told whenever a place in the pool gets free.
    pub(crate) room: Notify,
}

/// The half of a task that stays with us while the pool has the other.
pub(crate) enum Job {
    Task(TaskJob),
    Pack(PackJob),
}

/// A task's half: the loan to settle.
pub(crate) struct TaskJob {
    bridge: Arc<Bridge>,
    hold: Hold,
    envelope: Arc<Envelope>,
    entry: Arc<Entry>,
    span: AttemptSpan,
}

/// How the delivery is held while its task waits and runs.
enum Hold {
    /// A short task's: nobody else knows of it.
    Own(Delivery),
    /// A long task's: renewed when the message comes back while it runs.
    Loan(Loan),
}

impl TaskJob {
    /// The delivery to settle. A loan is empty only after it was taken once.
    fn take_delivery(hold: Hold, bridge: &Bridge, envelope: &Envelope) -> Option<Delivery> {
        match hold {
            Hold::Own(delivery) => Some(delivery),
            Hold::Loan(loan) => bridge.clerk.loans.end(&envelope.id, &loan),
        }
    }

    fn complete(self, end: End) {
        let Self { bridge, hold, envelope, entry, span } = self;
        let Some(delivery) = Self::take_delivery(hold, &bridge, &envelope) else { return };
        bridge.clerk.settle(&bridge.lane, delivery, envelope, &entry, end, span);
    }

    fn hand_back(self) {
        let Self { bridge, hold, envelope, .. } = self;
        if let Some(delivery) = Self::take_delivery(hold, &bridge, &envelope) {
            bridge.clerk.hand_back(delivery, &envelope);
        }
    }
}

impl Job {
    fn bridge(&self) -> &Bridge {
        match self {
            Self::Task(job) => &job.bridge,
            Self::Pack(job) => &job.bridge,
        }
    }

    fn hand_back(self) {
        match self {
            Self::Task(job) => job.hand_back(),
            Self::Pack(job) => job.hand_back(0),
        }
    }
}

impl Completion<Yield> for Job {
    fn trace_id(&self) -> Option<&str> {
        match self {
            Self::Task(job) => job.envelope.trace_id(),
            // Its records have one each.
            Self::Pack(_) => None,
        }
    }

    fn complete(self, ending: Ending<Yield>) {
        self.bridge().room.notify_one();
        match self {
            Self::Task(job) => job.complete(End::of(ending.map(Yield::task))),
            Self::Pack(job) => job.complete(ending.map(Yield::pack)),
        }
    }
}

/// A task that may enter the pool.
type Ready = (Spec, Work, Job);

impl Bridge {
    /// Takes deliveries. Returns once the pool has them or they are on their way back; a pool that is full
    /// (with tasks of a channel that died) is waited for.
    pub(crate) async fn accept(self: &Arc<Self>, deliveries: Vec<Delivery>) {
        let now = SystemTime::now();
        let mut ready = VecDeque::with_capacity(deliveries.len());
        ready.extend(deliveries.into_iter().filter_map(|delivery| self.read(delivery, now)));
        self.enter(ready).await;
    }

    /// What is to run of a delivery now; nothing where something else was done about it.
    fn read(self: &Arc<Self>, delivery: Delivery, now: SystemTime) -> Option<Ready> {
        let dead = |delivery, envelope: Option<Arc<Envelope>>, reason, error| {
            let span = envelope.as_ref().map(|envelope| self.spans.attempt(envelope)).unwrap_or_default();
            self.clerk.dead(&self.lane, delivery, envelope, reason, error, &span);
            None
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
            Ok(mut envelope) => {
                // A pack stands for no task; its records have traces of their own.
                if envelope.content_type != ContentType::Pack {
                    self.spans.adopt(&mut envelope);
                }
                Arc::new(envelope)
            }
            Err(malformed) => return dead(delivery, None, DeadReason::Malformed, malformed.to_string()),
        };
        if envelope.content_type == ContentType::Pack {
            return self.read_pack(delivery, envelope, now);
        }
        let delivery = if delivery.redelivered {
            if self.clerk.loans.is_done(&envelope.id) {
                delivery.settle(Fate::Acked);
                return None;
            }
            self.clerk.loans.renew(&envelope.id, delivery).err()?
        } else {
            delivery
        };
        if envelope.expired(now) {
            return dead(delivery, Some(envelope), DeadReason::Expired, "expired before it started".into());
        }
        match self.member.orders().word(&envelope, now) {
            Some(Word::Stopped) => {
                return dead(delivery, Some(envelope), DeadReason::Stopped, "stopped by an operator".into());
            }
            Some(Word::PutOff(wait)) => {
                self.clerk.put_off(&self.lane, delivery, &envelope, wait);
                return None;
            }
            None => {}
        }
        let Some(entry) = self.registry.get(envelope.kind.as_str()).cloned() else {
            let error = format!("no handler for kind {:?}", envelope.kind.as_str());
            return dead(delivery, Some(envelope), DeadReason::UnknownKind, error);
        };
        if let Some(wait) = envelope.due_in(now) {
            self.clerk.put_off(&self.lane, delivery, &envelope, wait);
            return None;
        }
        if self.quarantine || envelope.delivery_count >= SUSPICIOUS_RETURNS {
            // Finding out takes a moment, in which the others go on.
            let this = Arc::clone(self);
            self.clerk.tracker.spawn(async move { this.examine(delivery, envelope, entry).await });
            return None;
        }
        Some(self.ready(delivery, envelope, entry))
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
                let span = self.spans.attempt(&envelope);
                return self.clerk.dead(
                    &self.lane,
                    delivery,
                    Some(envelope),
                    DeadReason::Poison,
                    error,
                    &span,
                );
            }
            return self.clerk.arm(delivery, &envelope);
        }
        let ready = self.ready(delivery, envelope, entry);
        self.enter(VecDeque::from([ready])).await;
    }

    fn ready(self: &Arc<Self>, delivery: Delivery, envelope: Arc<Envelope>, entry: Arc<Entry>) -> Ready {
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
        let span = self.spans.attempt(&envelope);
        let attempt = Attempt {
            entry: Arc::clone(&entry),
            envelope: Arc::clone(&envelope),
            worker: Arc::clone(&self.worker),
            surroundings: self.surroundings.clone(),
            body: delivery.body.clone(),
            epoch: delivery.epoch(),
            orders: Arc::clone(self.member.orders()),
            span: span.clone(),
        };
        let hold = match entry.options.deadline {
            Some(_) => Hold::Loan(self.clerk.loans.lend(&envelope.id, delivery)),
            None => Hold::Own(delivery),
        };
        let job = Job::Task(TaskJob { bridge: Arc::clone(self), hold, envelope, entry, span });
        (spec, Work::Task(attempt), job)
    }

    /// Submits to the pool as soon as there is room; hands back where the pool is closed.
    async fn enter(&self, mut ready: VecDeque<Ready>) {
        while !ready.is_empty() {
            let room = self.room.notified();
            match self.pool.submit_each(&mut ready) {
                Ok(()) => return,
                Err(Refusal::QueueFull { .. }) => room.await,
                Err(_) => return ready.into_iter().for_each(|(_, _, job)| job.hand_back()),
            }
        }
    }
}
