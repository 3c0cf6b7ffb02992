//! Which deliveries account for the messages that a process published under their id.
//!
//! A process may hold several messages of one identity. Which of them it copied is not visible, so copies and deliveries are
//! counted: each delivery accounts for one copy that is confirmed or may still be, if it is older than the copy.

use super::{
    Ledger,
    identity::{Delivery, DeliveryEnd, Identity, IdentityId, Instance, Outcome, Published},
};
use crate::id::{OwnerId, Serial};

impl Ledger {
    /// Whether a process ever got a message of the identity.
    pub(super) fn was_delivered_to(&self, identity: IdentityId, owner: OwnerId) -> bool {
        self.deliveries(&self.identities[identity.0], owner, |_| true).next().is_some()
    }

    fn instances_of<'a>(&'a self, identity: &'a Identity) -> impl Iterator<Item = (Serial, &'a Instance)> {
        identity.instances.iter().map(|serial| (*serial, &self.instances[serial.index()]))
    }

    /// The number of serials at each delivery of the identity to a process that fits.
    fn deliveries<'a>(
        &'a self,
        identity: &'a Identity,
        owner: OwnerId,
        fits: impl Fn(&Delivery) -> bool + 'a,
    ) -> impl Iterator<Item = usize> + 'a {
        let all = self.instances_of(identity).flat_map(|(_, it)| &it.deliveries);
        all.filter(move |it| it.owner == owner && fits(it)).map(|it| it.serials_before)
    }

    /// The copies of a process that no ack relied on yet, and that may still be relied on.
    fn copies<'a>(
        &'a self,
        identity: &'a Identity,
        owner: OwnerId,
    ) -> impl Iterator<Item = (Serial, &'a Instance)> {
        let is_copy = move |it: &Instance| {
            it.published == Published::Copy(owner) && !it.is_used && !it.outcome.has_failed()
        };
        self.instances_of(identity).filter(move |(_, it)| is_copy(it))
    }

    /// Whether a process has published more copies than its deliveries account for.
    pub(super) fn has_too_many_copies(&self, identity: IdentityId, owner: OwnerId) -> bool {
        let identity = &self.identities[identity.0];
        let copies = self.copies(identity, owner).map(|(serial, _)| serial);
        unaccounted(copies, self.deliveries(identity, owner, Delivery::is_open)) > 0
    }

    /// Whether a process has published a follow-up more often than its deliveries of the parent account for.
    pub(super) fn has_too_many_follow_ups(
        &self,
        identity: IdentityId,
        parent: IdentityId,
        owner: OwnerId,
    ) -> bool {
        let is_one = |it: &Instance| it.published == Published::FollowUp(owner) && !it.outcome.has_failed();
        let published = self.instances_of(&self.identities[identity.0]).filter(|(_, it)| is_one(it));
        let of_parent = self.deliveries(&self.identities[parent.0], owner, |_| true);
        unaccounted(published.map(|(serial, _)| serial), of_parent) > 0
    }

    /// Whether confirmed copies of a process have no other delivery that accounts for them than the current one of a message.
    pub(super) fn is_copied(&self, serial: Serial) -> bool {
        let Some((identity, current)) = self.current(serial) else { return false };
        let acked = self.copies(identity, current.owner).filter(|(_, it)| it.outcome == Outcome::Acked);
        self.needs_current(identity, current, acked.map(|(serial, _)| serial).collect())
    }

    /// Whether stored copies of a process have no other delivery that accounts for them than the current one of a message.
    pub(super) fn has_copy(&self, serial: Serial) -> bool {
        let Some((identity, current)) = self.current(serial) else { return false };
        let stored = self.copies(identity, current.owner).filter(|(_, it)| it.was_stored);
        self.needs_current(identity, current, stored.map(|(serial, _)| serial).collect())
    }

    fn needs_current(&self, identity: &Identity, current: &Delivery, copies: Vec<Serial>) -> bool {
        let is_other = |it: &Delivery| it.is_open() && !std::ptr::eq(it, current);
        unaccounted(copies, self.deliveries(identity, current.owner, is_other)) > 0
    }

    fn current(&self, serial: Serial) -> Option<(&Identity, &Delivery)> {
        let instance = &self.instances[serial.index()];
        Some((&self.identities[instance.identity?.0], instance.deliveries.last()?))
    }

    /// The confirmed copy that an ack of the message relies on: the oldest one, because those of later deliveries are younger.
    pub(super) fn copy_to_rely_on(&self, serial: Serial) -> Option<Serial> {
        let (identity, current) = self.current(serial)?;
        let fits = |copy: &Serial, it: &Instance| {
            it.outcome == Outcome::Acked && copy.index() >= current.serials_before
        };
        let mut copies = self.copies(identity, current.owner).filter(|(copy, it)| fits(copy, it));
        copies.next().map(|(copy, _)| copy)
    }

    /// How many messages of the identity may exist: one, one for each fork, and one for each copy that a delivery accounts for or
    /// whose confirm failed.
    pub(super) fn most_messages(&self, identity: &Identity) -> usize {
        let mut most = 1 + identity.forks;
        let mut owners = Vec::new();
        for (_, instance) in self.instances_of(identity) {
            let Published::Copy(owner) = instance.published else { continue };
            most += usize::from(instance.was_stored && instance.outcome.has_failed());
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        for owner in owners {
            let stored: Vec<_> =
                self.copies(identity, owner).filter(|(_, it)| it.was_stored).map(|(it, _)| it).collect();
            let count = stored.len();
            most += count - unaccounted(stored, self.deliveries(identity, owner, Delivery::is_open));
        }
        most
    }

    /// Whether a process published more copies than messages that it holds account for.
    pub(super) fn is_of_returned_delivery(&self, identity: IdentityId, owner: OwnerId) -> bool {
        let identity = &self.identities[identity.0];
        let copies = self.copies(identity, owner).map(|(serial, _)| serial);
        unaccounted(copies, self.deliveries(identity, owner, |it| it.end == DeliveryEnd::None)) > 0
    }

    /// The current delivery of a message has ended.
    pub(super) fn end_delivery(&mut self, serial: Serial, end: DeliveryEnd) {
        if let Some(delivery) = self.instances[serial.index()].deliveries.last_mut() {
            delivery.end = end;
        }
    }
}

/// How many of these copies have no delivery of their own that is older. `deliveries` are the numbers of serials before them.
fn unaccounted(copies: impl IntoIterator<Item = Serial>, deliveries: impl Iterator<Item = usize>) -> usize {
    let mut copies: Vec<_> = copies.into_iter().map(Serial::index).collect();
    let mut deliveries: Vec<_> = deliveries.collect();
    copies.sort_unstable();
    deliveries.sort_unstable();
    let mut older = deliveries.into_iter().peekable();
    let (mut free, mut unaccounted) = (0_usize, 0);
    for copy in copies {
        while older.next_if(|delivery| *delivery <= copy).is_some() {
            free += 1;
        }
        match free.checked_sub(1) {
            Some(left) => free = left,
            None => unaccounted += 1,
        }
    }
    unaccounted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_needs_an_older_delivery_of_its_own() {
        let count = |copies: &[u32], deliveries: &[usize]| {
            unaccounted(copies.iter().map(|it| Serial(*it)), deliveries.iter().copied())
        };
        assert_eq!(count(&[], &[1]), 0);
        assert_eq!(count(&[5], &[]), 1);
        assert_eq!(count(&[5], &[5]), 0, "five messages were there before it");
        assert_eq!(count(&[5], &[6]), 1);
        assert_eq!(count(&[9, 5], &[6, 1]), 0);
        assert_eq!(count(&[5, 5, 9], &[6, 1]), 1);
    }
}
