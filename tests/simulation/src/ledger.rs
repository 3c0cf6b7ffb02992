//! Where every message is, and which rules of delivery were broken.
//!
//! A message is known by its identity: its `message_id` and the process that first published it. The broker stores
//! *instances* of it: each publish is one, and a requeue or a dead-lettering keeps the instance. A worker may publish an
//! instance of what it holds, its *copy*; between the copy's arrival and the ack of the original there are two.
//!
//! An identity may have one instance, and one more for each [`Fork`]: an event that made another one inevitable.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{
    connection::Role,
    frame::Settle,
    id::{OwnerId, QueueId, Serial},
    rules::ReturnKind,
    trace::What,
};

mod copies;
mod follow_ups;
mod identity;
mod rule;

pub use identity::Fork;
use identity::{Identity, IdentityId, Instance, Outcome, Place, Source};
pub use rule::Rule;

/// A broken rule, of one identity.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) at: Duration,
    pub(crate) identity: IdentityId,
    pub(crate) rule: Rule,
}

/// Follows every message. Each method is called where the broker does what it is named for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    identities: Vec<Identity>,
    by_id: HashMap<Arc<str>, IdentityId>,
    /// By serial. Messages that are not tracked have no identity.
    instances: Vec<Instance>,
    /// Identities that changed since the last check.
    changed: Vec<IdentityId>,
    pub(crate) broken: Vec<Broken>,
    forks: BTreeMap<Fork, usize>,
    /// What workers hold of queues that were deleted.
    orphans: Vec<Serial>,
}

impl Ledger {
    /// Assigns the next serial to a message that no rule applies to.
    pub(crate) fn untracked(&mut self) -> Serial {
        self.instances.push(Instance::new(None, None));
        Serial(self.instances.len() as u32 - 1)
    }

    /// A process publishes a message. `parent` is the id of the task whose follow-up it is; a copy of a follow-up has none.
    pub(crate) fn published(
        &mut self,
        now: Duration,
        (owner, role): (OwnerId, Role),
        id: &str,
        parent: Option<&str>,
    ) -> Serial {
        let known = self.by_id.get(id).copied();
        let identity = known.unwrap_or_else(|| self.add(id, owner));
        let held = |id| self.last_held(id, owner, identity);
        let of = |is_own| move |(serial, delivery)| Source { serial, delivery, is_own };
        let source = match parent.and_then(|id| self.by_id.get(id).copied()) {
            Some(parent) => held(parent).map(of(false)),
            None => known.and_then(held).map(of(true)),
        };
        let mut instance = Instance::new(Some(identity), source);
        if let Some(source) = source {
            let copies = self.identities[identity.0].instances.iter().map(|it| &self.instances[it.index()]);
            let copies: Vec<_> = copies.filter(|it| it.source == Some(source)).collect();
            let was_stored = copies.iter().any(|it| it.was_stored);
            if !copies.iter().all(|it| it.outcome.has_failed()) {
                self.break_rule(now, identity, Rule::CopiedTwice);
            }
            instance.fork = if was_stored {
                Some(Fork::ConfirmLost)
            } else if !source.is_own {
                // The follow-up of a run that was repeated.
                known.map(|_| Fork::Repeated)
            } else {
                (!self.is_current(source)).then_some(Fork::LostDelivery)
            };
        } else if known.is_some() {
            instance.fork = Some(if role == Role::Publisher { Fork::Republished } else { Fork::Repeated });
        }
        self.instances.push(instance);
        let serial = Serial(self.instances.len() as u32 - 1);
        self.identities[identity.0].instances.push(serial);
        self.change(identity);
        serial
    }

    fn add(&mut self, id: &str, origin: OwnerId) -> IdentityId {
        let identity = IdentityId(self.identities.len());
        let id: Arc<str> = id.into();
        self.identities.push(Identity::new(Arc::clone(&id), origin));
        self.by_id.insert(id, identity);
        identity
    }

    /// One publish reached a second queue.
    pub(crate) fn duplicated(&mut self, serial: Serial) -> Serial {
        let original = &self.instances[serial.index()];
        let mut second = Instance::new(original.identity, original.source);
        second.fork = Some(Fork::SeveralQueues);
        second.outcome = original.outcome;
        self.instances.push(second);
        let serial = Serial(self.instances.len() as u32 - 1);
        self.with(serial, |it, _| it.instances.push(serial));
        serial
    }

    /// The client reads the confirm.
    pub(crate) fn confirmed(&mut self, serial: Serial, acked: bool) {
        let instance = &mut self.instances[serial.index()];
        let (source, was_returned) = (instance.source, instance.outcome == Outcome::Returned);
        if was_returned {
            return;
        }
        instance.outcome = if acked { Outcome::Acked } else { Outcome::Refused };
        if acked {
            self.with(serial, |identity, _| identity.is_confirmed = true);
            if let Some(source) = source.filter(|it| it.is_own && self.is_current(*it)) {
                self.instances[source.serial.index()].is_copied = true;
            }
        }
    }

    /// The message was returned to its publisher.
    pub(crate) fn unroutable(&mut self, serial: Serial) {
        self.instances[serial.index()].outcome = Outcome::Returned;
        self.move_to(serial, Place::Nowhere);
    }

    /// No confirm will come.
    pub(crate) fn confirm_lost(&mut self, serial: Serial) {
        let outcome = &mut self.instances[serial.index()].outcome;
        if *outcome == Outcome::Pending {
            *outcome = Outcome::Lost;
        }
    }

    /// A queue has the message: newly stored, or dead-lettered from another queue.
    pub(crate) fn stored(&mut self, serial: Serial, queue: QueueId) {
        let instance = &mut self.instances[serial.index()];
        if !std::mem::replace(&mut instance.was_stored, true) {
            let (fork, source) = (instance.fork, instance.source);
            self.fork(serial, fork);
            if let Some(source) = source.filter(|it| it.is_own && self.is_current(*it)) {
                self.instances[source.serial.index()].has_copy = true;
            }
        }
        self.move_to(serial, Place::Queue(queue));
    }

    /// A consumer has the message.
    pub(crate) fn delivered(&mut self, serial: Serial, queue: QueueId, owner: OwnerId) {
        let instances_before = self.instances.len();
        let instance = &mut self.instances[serial.index()];
        instance.deliveries.push(owner);
        instance.instances_before = instances_before;
        (instance.has_copy, instance.is_copied, instance.is_settled) = (false, false, false);
        self.move_to(serial, Place::Held(queue));
    }

    /// The broker reads a settlement of a delivery.
    pub(crate) fn settled(&mut self, now: Duration, serial: Serial, how: Settle) {
        let Instance { identity: Some(identity), has_copy, is_copied, .. } = self.instances[serial.index()]
        else {
            return;
        };
        match how {
            Settle::Ack if is_copied || self.trade_copies(serial, |twin| twin.is_copied) => {}
            Settle::Ack if self.take_copy_of_earlier_delivery(serial) => {}
            _ if has_copy => _ = self.trade_copies(serial, |twin| !twin.has_copy),
            _ => {}
        }
        let instance = &mut self.instances[serial.index()];
        instance.is_settled = true;
        let is_copied = instance.is_copied;
        match how {
            Settle::Ack if !is_copied && !self.identities[identity.0].has_ended => {
                self.break_rule(now, identity, Rule::AckedTooEarly);
            }
            Settle::Ack if !is_copied && !self.has_its_follow_ups(identity) => {
                self.break_rule(now, identity, Rule::AckedBeforeItsFollowUps);
            }
            Settle::Requeue(_) if is_copied => self.break_rule(now, identity, Rule::RequeuedAfterItsCopy),
            _ => {}
        }
    }

    /// The queue applied the ack.
    pub(crate) fn applied(&mut self, serial: Serial) {
        let is_copied = self.instances[serial.index()].is_copied;
        self.move_to(serial, if is_copied { Place::Nowhere } else { Place::Done });
    }

    /// The message is ready again.
    pub(crate) fn returned(&mut self, serial: Serial, queue: QueueId, kind: ReturnKind) {
        let is_lost = matches!(kind, ReturnKind::Down | ReturnKind::Timeout);
        if self.instances[serial.index()].has_copy {
            self.fork(serial, Some(if is_lost { Fork::AckLost } else { Fork::ConfirmLost }));
        }
        self.move_to(serial, Place::Queue(queue));
    }

    /// The message exists no more, by a rule of its queue.
    pub(crate) fn dropped(&mut self, serial: Serial) {
        self.move_to(serial, Place::Nowhere);
    }

    /// The queue of the message was deleted: whatever happens to the identity, it is not lost by a client.
    pub(crate) fn deleted(&mut self, serial: Serial) {
        self.move_to(serial, Place::Nowhere);
        self.with(serial, |identity, _| identity.is_excused = true);
    }

    /// The queue of the message was deleted while a worker held it.
    pub(crate) fn orphaned(&mut self, serial: Serial) {
        if self.is_tracked(serial) {
            self.orphans.push(serial);
            self.move_to(serial, Place::Orphan);
        }
    }

    /// The worker that has an orphan has ended, or has let go of it before it knew of the deletion. Unless the message exists
    /// elsewhere, it is lost with its queue.
    pub(crate) fn orphan_lost(&mut self, serial: Serial) {
        let instance = &self.instances[serial.index()];
        let (Place::Orphan, Some(identity)) = (instance.place, instance.identity) else { return };
        self.orphans.retain(|it| *it != serial);
        self.move_to(serial, Place::Nowhere);
        let mut instances = self.identities[identity.0].instances.iter();
        if !instances.any(|it| self.instances[it.index()].exists()) {
            self.identities[identity.0].is_excused = true;
        }
    }

    /// A process ended, and its orphans with it.
    pub(crate) fn owner_ended(&mut self, owner: OwnerId) {
        let is_own = |it: &&Serial| self.instances[it.index()].deliveries.last() == Some(&owner);
        let own: Vec<_> = self.orphans.iter().filter(is_own).copied().collect();
        own.into_iter().for_each(|serial| self.orphan_lost(serial));
    }

    /// The effect of a task took place. Unknown ids are ignored.
    pub(crate) fn effect(&mut self, id: &str) -> Option<IdentityId> {
        let identity = *self.by_id.get(id)?;
        self.identities[identity.0].effects += 1;
        self.identities[identity.0].has_ended = true;
        Some(identity)
    }

    /// A task ended in a way that needs neither an effect nor a copy.
    pub(crate) fn ended(&mut self, id: &str) -> Option<IdentityId> {
        let identity = *self.by_id.get(id)?;
        self.identities[identity.0].has_ended = true;
        Some(identity)
    }

    /// Adds a record to the history of a message's identity.
    pub(crate) fn record(&mut self, now: Duration, serial: Serial, what: &What) {
        self.with(serial, |identity, _| identity.history.push((now, what.clone())));
    }

    pub(crate) fn record_of(&mut self, now: Duration, identity: IdentityId, what: What) {
        self.identities[identity.0].history.push((now, what));
    }

    fn fork(&mut self, serial: Serial, fork: Option<Fork>) {
        let Some(fork) = fork.filter(|_| self.is_tracked(serial)) else { return };
        *self.forks.entry(fork).or_default() += 1;
        self.with(serial, |identity, _| identity.forks += 1);
    }

    fn with(&mut self, serial: Serial, change: impl FnOnce(&mut Identity, IdentityId)) {
        if let Some(identity) = self.instances[serial.index()].identity {
            change(&mut self.identities[identity.0], identity);
            self.change(identity);
        }
    }

    fn move_to(&mut self, serial: Serial, place: Place) {
        self.instances[serial.index()].place = place;
        self.with(serial, |_, _| {});
    }

    fn change(&mut self, identity: IdentityId) {
        if !std::mem::replace(&mut self.identities[identity.0].is_changed, true) {
            self.changed.push(identity);
        }
    }

    fn break_rule(&mut self, at: Duration, identity: IdentityId, rule: Rule) {
        let broken = &mut self.identities[identity.0].broken;
        if !broken.contains(&rule) {
            broken.push(rule);
            self.broken.push(Broken { at, identity, rule });
        }
    }

    /// Checks the state of everything that changed since the last check.
    pub(crate) fn check(&mut self, now: Duration) {
        while let Some(id) = self.changed.pop() {
            self.identities[id.0].is_changed = false;
            let identity = &self.identities[id.0];
            let instances = || identity.instances.iter().map(|it| &self.instances[it.index()]);
            if instances().filter(|it| it.stands_alone()).count() > 1 + identity.forks {
                self.break_rule(now, id, Rule::InTwoPlaces);
            } else if identity.must_exist() && !instances().any(Instance::exists) {
                self.break_rule(now, id, Rule::Lost);
            }
        }
    }

    /// Confirmed messages that neither had an effect nor are in one of these queues of dead letters, by id.
    pub(crate) fn unfinished(&self, is_dead: impl Fn(QueueId) -> bool) -> Vec<Arc<str>> {
        let in_dead = |serial: &Serial| match self.instances[serial.index()].place {
            Place::Queue(queue) | Place::Held(queue) => is_dead(queue),
            Place::Nowhere | Place::Done | Place::Orphan => false,
        };
        let open = |it: &&Identity| it.must_exist() && !it.instances.iter().any(in_dead);
        self.identities.iter().filter(open).map(|it| Arc::clone(&it.id)).collect()
    }

    /// How often the effect of a task took place.
    pub(crate) fn effects(&self, id: &str) -> u32 {
        self.by_id.get(id).map_or(0, |it| self.identities[it.0].effects)
    }

    /// How many messages a task had to have by now: one, and one for each fork.
    pub(crate) fn messages_of(&self, id: &str) -> u32 {
        1 + self.by_id.get(id).map_or(0, |it| self.identities[it.0].forks as u32)
    }

    /// How many messages came to exist once more, by reason.
    pub(crate) fn forks(&self) -> &BTreeMap<Fork, usize> {
        &self.forks
    }

    /// The queue that has a message, if one has it.
    pub(crate) fn queue_of(&self, serial: Serial) -> Option<QueueId> {
        match self.instances[serial.index()].place {
            Place::Queue(queue) | Place::Held(queue) => Some(queue),
            Place::Nowhere | Place::Done | Place::Orphan => None,
        }
    }

    pub(crate) fn is_tracked(&self, serial: Serial) -> bool {
        self.instances[serial.index()].identity.is_some()
    }

    /// Serials that were assigned.
    pub(crate) fn serials(&self) -> impl Iterator<Item = Serial> {
        (0..self.instances.len() as u32).map(Serial)
    }

    /// The id of a message, and its number among the instances of its identity.
    pub(crate) fn name(&self, serial: Serial) -> Option<(&str, usize)> {
        let identity = &self.identities[self.instances[serial.index()].identity?.0];
        let number = identity.instances.iter().position(|it| *it == serial)?;
        Some((&identity.id, number + 1))
    }

    pub(crate) fn identity(&self, id: IdentityId) -> &Identity {
        &self.identities[id.0]
    }
}
