//! What a worker knows of the rest of the fleet: which workers live, which crashed, and what an operator
//! ordered of tasks wherever they turn up.

mod crash;
mod directives;
mod grouped;
mod lifecycle;
mod member;
mod membership;
mod wire;

pub(crate) use directives::{DirectiveEffect, Directives};
pub(crate) use member::{Identity, Member};
pub(crate) use membership::{Command, FleetError, Membership};

#[cfg(test)]
pub(crate) use member::tests;
