//! The fleet's processes by their heartbeats, kept in memory only.

mod lifecycle;
mod listener;
mod poll;
mod roster;
mod totals;

use std::collections::BTreeMap;

use garenne_protocol::heartbeat::LaneBeat;

use crate::table::grouped;

pub use listener::HeartbeatListener;
pub use poll::poll_fleet;
pub use roster::{MemberView, Process, Roster, State};
pub use totals::{KindTotals, Totals, quantile};

/// The lanes of a worker and its paused groups in one line, without an idle quarantine.
pub fn lanes_line(lanes: &BTreeMap<String, LaneBeat>, paused: &[String]) -> String {
    let shown = lanes.iter().filter(|(name, lane)| *name != "quarantine" || lane.busy + lane.queued > 0);
    let text = shown.map(|(name, lane)| {
        let mut text = format!("{name} {}/{}", lane.busy, lane.slots);
        if lane.queued > 0 {
            text += &format!(" +{}", grouped(lane.queued as u64));
        }
        if lane.stuck > 0 {
            text += &format!(" {} stuck", lane.stuck);
        }
        if lane.trouble.is_some() {
            text += " not consuming";
        }
        text
    });
    let mut text = text.collect::<Vec<_>>().join(", ");
    if !paused.is_empty() {
        text += &format!("; paused: {}", paused.join(" "));
    }
    text
}
