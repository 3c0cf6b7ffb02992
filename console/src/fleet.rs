//! The fleet's processes by their heartbeats, kept in memory only.

mod lifecycle;
mod listener;
mod poll;
mod roster;
mod totals;

pub use lifecycle::running_workers;
pub use listener::HeartbeatListener;
pub use poll::{FleetPoll, poll_fleet};
pub use roster::{MemberView, Roster, State};
pub use totals::{KindTotals, LaneTotals, Totals, quantile};
