//! What a worker knows of the rest of the fleet: which workers live, which crashed, and what an operator
//! ordered of tasks wherever they turn up.

mod crash;
mod grouped;
mod lives;
mod member;
mod membership;
mod orders;
mod wire;

pub(crate) use member::{Identity, Member};
pub(crate) use membership::{Command, FleetError, Membership};
pub(crate) use orders::{Orders, Word};

#[cfg(test)]
pub(crate) use member::tests;
