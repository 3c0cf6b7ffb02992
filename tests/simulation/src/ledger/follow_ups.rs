//! What runs of a task requested to follow it.

use super::{Ledger, identity::IdentityId};

impl Ledger {
    /// A run of a task requests a follow-up. Unknown tasks are ignored.
    pub(crate) fn follows(&mut self, id: &str, follow_up: &str) {
        if let Some(identity) = self.by_id.get(id) {
            self.identities[identity.0].follow_ups.push(follow_up.into());
        }
    }

    /// Whether each follow-up of a task was confirmed to a publisher.
    pub(super) fn has_its_follow_ups(&self, identity: IdentityId) -> bool {
        let is_confirmed = |id| self.by_id.get(id).is_some_and(|it| self.identities[it.0].is_confirmed);
        self.identities[identity.0].follow_ups.iter().all(is_confirmed)
    }
}
