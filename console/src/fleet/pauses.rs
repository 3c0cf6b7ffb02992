//! The lanes, kinds and groups that workers have paused, over the whole fleet.

use std::collections::{BTreeMap, BTreeSet};

use super::roster::{MemberView, beats};

/// The number of workers that have paused each lane and each kind, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// The lanes.
    pub lanes: BTreeMap<String, usize>,
    /// The kinds.
    pub kinds: BTreeMap<String, usize>,
}

impl Pauses {
    /// The reports of these workers. A worker reports the lanes that it consumes, and all kinds.
    pub fn of(workers: &[MemberView]) -> Self {
        let mut pauses = Self::default();
        for beat in beats(workers) {
            for (name, _) in beat.lanes.iter().filter(|(_, lane)| lane.paused) {
                *pauses.lanes.entry(name.clone()).or_default() += 1;
            }
            for name in &beat.paused_kinds {
                *pauses.kinds.entry(name.clone()).or_default() += 1;
            }
        }
        pauses
    }

    /// The paused object: `lane` or `kind`, the name, and the number of workers.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &str, usize)> {
        let lanes = self.lanes.iter().map(|(name, count)| ("lane", name.as_str(), *count));
        lanes.chain(self.kinds.iter().map(|(name, count)| ("kind", name.as_str(), *count)))
    }
}

/// The paused objects: `lane`, `kind` or `group`, and the name.
pub fn paused(workers: &[MemberView]) -> BTreeSet<(String, String)> {
    let pauses = Pauses::of(workers);
    let groups = beats(workers).flat_map(|beat| &beat.paused).map(|name| ("group", name.as_str()));
    let others = pauses.all().map(|(noun, name, _)| (noun, name));
    groups.chain(others).map(|(noun, name)| (noun.to_owned(), name.to_owned())).collect()
}
