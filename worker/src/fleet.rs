//! What a worker knows of the rest of the fleet: who lives, who died uncleanly, and which tasks are
//! to be stopped wherever they turn up.

mod lives;
mod member;
mod stops;

pub(crate) use member::{FleetError, Member, Membership, Order};
pub(crate) use stops::Stops;
