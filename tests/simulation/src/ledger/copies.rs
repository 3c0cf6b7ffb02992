//! Which delivery a published message is a copy of.

use super::{
    Ledger,
    identity::{IdentityId, Instance, Outcome, Place, Source},
};
use crate::id::{OwnerId, Serial};

impl Ledger {
    /// Whether the delivery has neither ended nor been followed by another one.
    pub(super) fn is_current(&self, source: Source) -> bool {
        let original = &self.instances[source.serial.index()];
        matches!(original.place, Place::Held(_)) && source.delivery + 1 == original.deliveries.len()
    }

    /// The delivery of the identity to a process that it publishes `published` from: a copy of its own, or a follow-up. If it
    /// was delivered twice, the best of them: one without such a publish that may still arrive, one that it holds, one whose
    /// publishes failed, the latest. A publish that waits for a channel may leave after its delivery is lost and delivered
    /// again to the same process.
    pub(super) fn last_held(
        &self,
        identity: IdentityId,
        owner: OwnerId,
        published: IdentityId,
    ) -> Option<(Serial, usize)> {
        let (instances, is_own) = (&self.identities[identity.0].instances, identity == published);
        let published = &self.identities[published.0].instances;
        let to_owner = |&serial: &Serial| {
            let deliveries = self.instances[serial.index()].deliveries.iter().enumerate();
            deliveries.filter(|(_, it)| **it == owner).map(move |(delivery, _)| (serial, delivery))
        };
        let rank = |&(serial, delivery): &(Serial, usize)| {
            let source = Source { serial, delivery, is_own };
            let is_held = self.is_current(source) && !self.instances[serial.index()].is_settled;
            let mut copies = published.iter().map(|it| &self.instances[it.index()]);
            let is_copy = |it: &&Instance| it.source == Some(source);
            let may_publish = copies.clone().filter(is_copy).all(|it| it.outcome.has_failed());
            (may_publish, is_held, copies.any(|it| is_copy(&it)))
        };
        instances.iter().flat_map(to_owner).max_by_key(rank)
    }

    /// A worker may hold a message twice. Which of the two it copied is not visible: if it settles one as if the copy was
    /// of the other one, then it was. Returns whether there was such another one.
    pub(super) fn trade_copies(&mut self, serial: Serial, has_the_other: impl Fn(&Instance) -> bool) -> bool {
        let Some(identity) = self.instances[serial.index()].identity else { return false };
        let holder =
            |it: &Instance| matches!(it.place, Place::Held(_)).then(|| it.deliveries.last().copied());
        let own = holder(&self.instances[serial.index()]);
        let is_twin = |it: &&Serial| {
            let twin = &self.instances[it.index()];
            **it != serial && holder(twin) == own && !twin.is_settled && has_the_other(twin)
        };
        let Some(twin) = self.identities[identity.0].instances.iter().find(is_twin).copied() else {
            return false;
        };
        let current = |it: Serial| Source {
            serial: it,
            delivery: self.instances[it.index()].deliveries.len() - 1,
            is_own: true,
        };
        let (mine, theirs) = (current(serial), current(twin));
        self.swap_sources(self.identities[identity.0].instances.clone(), mine, theirs);
        let flags = |it: &Instance| (it.has_copy, it.is_copied);
        let (of_mine, of_theirs) =
            (flags(&self.instances[serial.index()]), flags(&self.instances[twin.index()]));
        for (it, flags) in [(serial, of_theirs), (twin, of_mine)] {
            (self.instances[it.index()].has_copy, self.instances[it.index()].is_copied) = flags;
        }
        true
    }

    /// A worker may publish a copy for a delivery that it lost, after the same message was delivered to it again, and another one
    /// for that delivery. Which is whose is not visible either: if it acks when one of them is confirmed, then that one is of
    /// the current delivery. Returns whether there was one.
    pub(super) fn take_copy_of_earlier_delivery(&mut self, serial: Serial) -> bool {
        let original = &self.instances[serial.index()];
        let (Some(identity), Some(current)) = (original.identity, original.deliveries.len().checked_sub(1))
        else {
            return false;
        };
        let is_younger = |it: &Serial| it.index() >= original.instances_before;
        let copies: Vec<_> =
            self.identities[identity.0].instances.iter().copied().filter(is_younger).collect();
        let earlier = copies.iter().find_map(|it| {
            let Instance { source: Some(source), outcome: Outcome::Acked, .. } = self.instances[it.index()]
            else {
                return None;
            };
            let is_own = source.is_own && source.serial == serial && source.delivery < current;
            (is_own && original.deliveries[source.delivery] == original.deliveries[current]).then_some(source)
        });
        let Some(earlier) = earlier else { return false };
        let current = Source { delivery: current, ..earlier };
        self.swap_sources(copies, current, earlier);
        let original = &mut self.instances[serial.index()];
        (original.has_copy, original.is_copied) = (true, true);
        true
    }

    /// The copies of one of two deliveries become those of the other.
    fn swap_sources(&mut self, copies: Vec<Serial>, one: Source, other: Source) {
        for copy in copies {
            if let Some(source) = &mut self.instances[copy.index()].source {
                match *source {
                    it if it == one => *source = other,
                    it if it == other => *source = one,
                    _ => {}
                }
            }
        }
    }
}
