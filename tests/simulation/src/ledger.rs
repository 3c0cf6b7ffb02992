//! Where every message is, and which rules of delivery were broken.
//!
//! A message is known by its identity: its `message_id` and the process that first published it. The broker stores
//! *instances* of it: each publish is one, and a requeue or a dead-lettering keeps the instance. A worker may publish an
//! instance of what it holds, its *copy*; between the copy's arrival and the ack of the original there are two.
//!
//! An identity may have one instance, one more for each copy that a delivery accounts for, and one more for each [`Fork`]: an event
//! that made another one inevitable.

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
use identity::{Delivery, DeliveryEnd, Identity, IdentityId, Instance, Outcome, Place, Published};
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
        self.instances.push(Instance::new(None, Published::New));
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
        let parent = parent.and_then(|id| self.by_id.get(id).copied());
        let published = match parent {
            Some(parent) if self.was_delivered_to(parent, owner) => Published::FollowUp(owner),
            None if known.is_some() && self.was_delivered_to(identity, owner) => Published::Copy(owner),
            _ => Published::New,
        };
        let mut instance = Instance::new(Some(identity), published);
        instance.fork = match published {
            Published::Copy(_) => None,
            _ if known.is_none() => None,
            Published::New if role == Role::Publisher => Some(Fork::Republished),
            Published::New | Published::FollowUp(_) => Some(Fork::Repeated),
        };
        self.instances.push(instance);
        let serial = Serial(self.instances.len() as u32 - 1);
        self.identities[identity.0].instances.push(serial);
        let is_too_many = match (published, parent) {
            (Published::Copy(_), _) => self.has_too_many_copies(identity, owner),
            (Published::FollowUp(_), Some(parent)) => self.has_too_many_follow_ups(identity, parent, owner),
            _ => false,
        };
        if is_too_many {
            self.break_rule(now, identity, Rule::CopiedTwice);
        }
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
        let mut second = Instance::new(original.identity, Published::New);
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
        if instance.outcome == Outcome::Returned {
            return;
        }
        instance.outcome = if acked { Outcome::Acked } else { Outcome::Refused };
        if acked {
            self.with(serial, |identity, _| identity.is_confirmed = true);
        } else {
            self.copy_failed(serial);
        }
    }

    /// Counts a copy that exists without a confirm.
    fn copy_failed(&mut self, serial: Serial) {
        let Instance { published, was_stored, .. } = self.instances[serial.index()];
        if matches!(published, Published::Copy(_)) && was_stored {
            self.count(Fork::ConfirmLost);
            self.with(serial, |_, _| {});
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
            self.copy_failed(serial);
        }
    }

    /// A queue has the message: newly stored, or dead-lettered from another queue.
    pub(crate) fn stored(&mut self, serial: Serial, queue: QueueId) {
        let instance = &mut self.instances[serial.index()];
        if !std::mem::replace(&mut instance.was_stored, true) {
            let Instance { fork, published, .. } = *instance;
            if let Some(fork) = fork {
                self.count(fork);
                self.with(serial, |identity, _| identity.forks += 1);
            }
            if let (Published::Copy(owner), Some(identity)) =
                (published, self.instances[serial.index()].identity)
                && self.is_of_returned_delivery(identity, owner)
            {
                self.count(Fork::LostDelivery);
            }
        }
        self.move_to(serial, Place::Queue(queue));
    }

    /// A consumer has the message.
    pub(crate) fn delivered(&mut self, serial: Serial, queue: QueueId, owner: OwnerId) {
        let serials_before = self.instances.len();
        let delivery = Delivery { owner, serials_before, end: DeliveryEnd::None };
        self.instances[serial.index()].deliveries.push(delivery);
        self.move_to(serial, Place::Held(queue));
    }

    /// The broker reads a settlement of a delivery.
    pub(crate) fn settled(&mut self, now: Duration, serial: Serial, how: Settle) {
        let Some(identity) = self.instances[serial.index()].identity else { return };
        match how {
            Settle::Ack => match self.copy_to_rely_on(serial) {
                Some(copy) => {
                    self.instances[copy.index()].is_used = true;
                    self.end_delivery(serial, DeliveryEnd::Copied(copy));
                }
                None => {
                    self.end_delivery(serial, DeliveryEnd::Ended);
                    if !self.identities[identity.0].has_ended {
                        self.break_rule(now, identity, Rule::AckedTooEarly);
                    } else if !self.has_its_follow_ups(identity) {
                        self.break_rule(now, identity, Rule::AckedBeforeItsFollowUps);
                    }
                }
            },
            Settle::Requeue(_) if self.is_copied(serial) => {
                self.break_rule(now, identity, Rule::RequeuedAfterItsCopy);
            }
            Settle::Requeue(_) | Settle::Discard => {}
        }
        self.change(identity);
    }

    /// The queue applied the ack.
    pub(crate) fn applied(&mut self, serial: Serial) {
        let end = self.instances[serial.index()].deliveries.last().map(|it| it.end);
        let is_copied = matches!(end, Some(DeliveryEnd::Copied(_)));
        self.move_to(serial, if is_copied { Place::Nowhere } else { Place::Done });
    }

    /// The message is ready again.
    pub(crate) fn returned(&mut self, serial: Serial, queue: QueueId, kind: ReturnKind) {
        match self.instances[serial.index()].deliveries.last().map(|it| it.end) {
            Some(DeliveryEnd::Copied(copy)) => {
                self.count(Fork::AckLost);
                self.instances[copy.index()].is_used = false;
                self.end_delivery(serial, DeliveryEnd::Returned);
            }
            Some(DeliveryEnd::None) => {
                if self.has_copy(serial) {
                    let is_lost = matches!(kind, ReturnKind::Down | ReturnKind::Timeout);
                    self.count(if is_lost { Fork::AckLost } else { Fork::ConfirmLost });
                }
                self.end_delivery(serial, DeliveryEnd::Returned);
            }
            Some(DeliveryEnd::Returned | DeliveryEnd::Ended) | None => {}
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
        let is_own =
            |it: &&Serial| self.instances[it.index()].deliveries.last().is_some_and(|it| it.owner == owner);
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

    fn count(&mut self, fork: Fork) {
        *self.forks.entry(fork).or_default() += 1;
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
            let most = self.most_messages(identity);
            if instances().filter(|it| it.is_counted()).count() > most {
                self.break_rule(now, id, Rule::InTwoPlaces);
            } else if identity.must_exist() && !instances().any(Instance::exists) {
                self.break_rule(now, id, Rule::Lost);
            }
            let identity = &mut self.identities[id.0];
            identity.most_messages = identity.most_messages.max(most);
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

    /// How many messages a task could have at once until now.
    pub(crate) fn messages_of(&self, id: &str) -> u32 {
        self.by_id.get(id).map_or(1, |it| self.identities[it.0].most_messages as u32)
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
