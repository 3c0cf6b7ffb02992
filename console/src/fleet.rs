//! The fleet as its processes show themselves: their heartbeats, kept in memory and nowhere else.

mod ear;
mod lives;
mod muster;
mod roster;
mod totals;

pub use ear::Ear;
pub use lives::on_record;
pub use muster::{Muster, muster};
pub use roster::{MemberView, Roster, State};
pub use totals::{KindTotals, LaneTotals, Totals, quantile};
