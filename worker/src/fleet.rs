//! What a worker knows of the rest of the fleet: who lives, who died uncleanly, and what an
//! operator ordered of tasks wherever they turn up.

mod lives;
mod member;
mod orders;

pub(crate) use member::{Command, FleetError, Member, Membership};
pub(crate) use orders::{Orders, Word};
