//! What a replay or a drop did, and what it did not do.

use std::collections::{BTreeMap, HashMap};

use garenne_common::text::printable;
use serde::Serialize;

use super::letter::Letter;

/// Letters named per reason; the rest is counted.
const MOST_NAMED: usize = 20;
/// Reasons kept; the rest is counted together. Foreign kinds are part of some.
const MOST_REASONS: usize = 50;

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Letters moved.
    pub moved: u64,
    /// Letters looked at.
    pub looked: u64,
    /// Of the moved ones, those that went to the tasks exchange because their lane is not known here.
    pub without_lane: u64,
    /// Letters that matched and are still there, by the reason.
    pub failures: BTreeMap<String, Kept>,
    /// Letters that were there at the start and were gone when it was their turn.
    pub missed: u64,
    /// Letters in the queue that were not there at the start.
    pub arrived: u64,
    /// Whether it was told to stop before all was done.
    pub interrupted: bool,
}

/// Letters that stayed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// How many.
    pub count: u64,
    /// The first of them: ids, and kinds of those without an id.
    pub letters: Vec<String>,
}

impl Moved {
    /// Whether every letter that matched at the start was moved, up to the limit that was asked for.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.missed == 0 && !self.interrupted
    }

    /// A letter stays.
    pub(super) fn failed(&mut self, why: String, name: String) {
        let room = self.failures.len() < MOST_REASONS || self.failures.contains_key(&why);
        let why = if room { why } else { "other reasons".to_owned() };
        let kept = self.failures.entry(why).or_default();
        kept.count += 1;
        if kept.letters.len() < MOST_NAMED {
            kept.letters.push(name);
        }
    }

    /// A line for everything that an operator must know beside the number of moved letters.
    pub(super) fn remarks(&self, done: &str, dead: &str, tasks: &str) -> Vec<String> {
        let mut lines: Vec<_> = self
            .failures
            .iter()
            .map(|(why, Kept { count, letters })| {
                let names: Vec<_> = letters.iter().map(|name| printable(name)).collect();
                let more = count - letters.len() as u64;
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("{count} not {done}: {why}: {}{more}", names.join(", "))
            })
            .collect();
        if self.missed > 0 {
            lines.push(format!(
                "{} not {done}: another program took them from {dead} meanwhile; look again",
                self.missed
            ));
        }
        if self.interrupted {
            lines.push(format!("interrupted: what was not {done} is still in {dead}"));
        }
        if self.without_lane > 0 {
            lines.push(format!(
                "{} published to {tasks}, for no lane of these settings takes their kind: what no lane takes is unroutable",
                self.without_lane
            ));
        }
        if self.arrived > 0 {
            lines.push(format!(
                "{} more are in {dead} now: they came meanwhile, or another program was looking at them",
                self.arrived
            ));
        }
        lines
    }
}

/// How an operator finds a letter.
pub(super) fn name(letter: &Letter) -> String {
    letter.id.clone().unwrap_or_else(|| format!("(no id) {}", letter.kind))
}

/// Letters by identity. Equal ones are counted, for letters can be equal in all properties.
#[derive(Debug, Default)]
pub(super) struct Multiset(HashMap<u64, u64>);

impl Multiset {
    pub(super) fn add(&mut self, identity: u64) {
        *self.0.entry(identity).or_default() += 1;
    }

    /// Takes one out; whether there was one.
    pub(super) fn take(&mut self, identity: u64) -> bool {
        let Some(count) = self.0.get_mut(&identity) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&identity);
        }
        true
    }

    pub(super) fn len(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_letters_are_counted() {
        let mut letters = Multiset::default();
        [7, 7, 8].into_iter().for_each(|identity| letters.add(identity));
        assert_eq!(letters.len(), 3);
        assert_eq!([7, 9, 7, 7, 8].map(|identity| letters.take(identity)), [true, false, true, false, true]);
        assert!(letters.is_empty());
    }

    #[test]
    fn what_stayed_is_named_and_bounded() {
        let mut moved = Moved { moved: 3, looked: 100, ..Moved::default() };
        assert!(moved.is_complete());
        assert!(moved.remarks("replayed", "g.dead", "g.tasks").is_empty());
        for n in 0..25 {
            moved.failed("no queue".into(), format!("id-{n}"));
        }
        for n in 0..2 * MOST_REASONS {
            moved.failed(format!("reason {n}"), "\x1b[2J".into());
        }
        assert!(!moved.is_complete());
        assert_eq!(moved.failures.len(), MOST_REASONS + 1);
        assert_eq!(moved.failures.values().map(|kept| kept.count).sum::<u64>(), 25 + 2 * MOST_REASONS as u64);
        let lines = moved.remarks("replayed", "g.dead", "g.tasks");
        assert!(lines[0].starts_with("25 not replayed: no queue: id-0, id-1, "), "{}", lines[0]);
        assert!(lines[0].ends_with(", id-19 and 5 more"), "{}", lines[0]);
        assert_eq!(lines[2], r"1 not replayed: reason 0: \u{1b}[2J");
        assert!(lines[1].ends_with("and 31 more"), "{}", lines[1]);
    }
}
