//! A worker's knowledge of the rest of the fleet: which workers run, which crashed, and which tasks, groups,
//! lanes and kinds an operator stopped or paused.

mod broker;
mod crash_detector;
mod directives;
mod grouped_tasks;
mod lifecycle;
mod member;
mod membership;
mod shared_check;

pub(crate) use broker::FleetConnection;
pub(crate) use directives::{DirectiveEffect, Directives};
pub(crate) use lifecycle::{Handlers, KindWorkers};
pub(crate) use member::{CATCH_ALL_CHECK_INTERVAL, Member};
pub(crate) use membership::{Command, FleetError, Membership};

#[cfg(test)]
pub(crate) use member::tests;
