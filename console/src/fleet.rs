//! The fleet's processes by their heartbeats, kept in memory only.

mod control_queues;
mod groups;
mod hearing;
mod lifecycle;
mod listener;
mod pauses;
mod poll;
mod roster;
mod seen;
mod starts;
mod totals;
mod unacked;
mod unhandled;

use garenne_operator::table::{duration, grouped};
use garenne_protocol::heartbeat::Heartbeat;

pub use control_queues::ControlQueues;
pub use groups::{GroupTotals, groups};
pub use lifecycle::{RecordedWorker, recorded_workers};
pub use listener::HeartbeatListener;
pub use pauses::{Pauses, paused};
pub use poll::{poll_fleet, poll_workers};
pub(crate) use roster::beats;
pub use roster::{MemberView, Process, Roster, State};
pub use seen::{unseen_group, unseen_kind, unseen_lane, unseen_task};
pub use totals::{KindTotals, MIN_HUNG, Totals, add_buckets, hangs, is_overdue, quantile};
pub use unacked::count_unacked;
pub use unhandled::{unhandled, unhandled_in};

/// The columns of [`worker_row`].
pub const WORKER_COLUMNS: [&str; 6] =
    ["worker", "state", "lanes: busy/slots +queued", "longest task", "for", "last heartbeat"];

/// The row of a worker in a table: its id, its state, its lanes, its longest running task with its group, the time of
/// that task, and the time since its last heartbeat. Ids are whole, because operators copy them.
pub fn worker_row(member: &MemberView) -> [String; 6] {
    let beat = member.process.heartbeat();
    let longest = beat.and_then(|beat| beat.tasks.first());
    let task = longest.map(|task| {
        let done = task.progress.map(|done| format!(" {:.0}%", done * 100.0)).unwrap_or_default();
        let group = task.group.as_ref().map(|group| format!(" (group {group})")).unwrap_or_default();
        format!("{}{done} {}{group}", task.kind, task.id)
    });
    [
        member.process.id().to_owned(),
        member.state.to_string(),
        beat.map(lanes_line).unwrap_or_default(),
        task.unwrap_or_default(),
        longest.map(|task| duration((task.seconds * 1e3) as u64)).unwrap_or_default(),
        member.heard_ms_ago.map_or("never".to_owned(), |ms| format!("{} ago", duration(ms))),
    ]
}

/// The lanes of a worker, its paused groups and kinds and its sinks that are down in one line, without an idle
/// quarantine.
fn lanes_line(Heartbeat { lanes, paused, paused_kinds, sinks, .. }: &Heartbeat) -> String {
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
        if lane.paused {
            text += " paused";
        }
        text
    });
    let mut text = text.collect::<Vec<_>>().join(", ");
    if !paused.is_empty() {
        text += &format!("; paused: {}", paused.join(" "));
    }
    if !paused_kinds.is_empty() {
        text += &format!("; paused kinds: {}", paused_kinds.join(" "));
    }
    for (sink, _) in sinks.iter().filter(|(_, sink)| !sink.up) {
        text += &format!("; sink {sink} down");
    }
    text
}
