//! The groups whose tasks workers hold, over the whole fleet.

use std::collections::BTreeMap;

use super::roster::{MemberView, beats};

/// The tasks of a group that workers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTotals {
    /// Running tasks.
    pub running: usize,
    /// Tasks that wait for a slot.
    pub queued: usize,
    /// Workers that have paused the group.
    pub paused: usize,
}

/// The groups by name. Each worker reports its largest ones and those that it has paused.
pub fn groups(workers: &[MemberView]) -> BTreeMap<String, GroupTotals> {
    let mut groups: BTreeMap<String, GroupTotals> = BTreeMap::new();
    for beat in beats(workers) {
        for (name, group) in &beat.groups {
            let sum = groups.entry(name.clone()).or_default();
            sum.running += group.running;
            sum.queued += group.queued;
        }
        for name in &beat.paused {
            groups.entry(name.clone()).or_default().paused += 1;
        }
    }
    groups
}
