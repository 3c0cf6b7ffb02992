//! The result of a replay or a drop.

use std::collections::{BTreeMap, HashMap};

use garenne_common::text::printable;
use garenne_operator::dead::{DeadLetter, HeldQueue};
use garenne_protocol::topology::Names;
use serde::Serialize;
use serde_json::{Value, json};

/// Dead letters named per reason; the others are counted.
const MAX_NAMED: usize = 20;
/// Limit on different reasons; the others are counted together. Reasons can contain kinds, which publishers choose.
const MAX_REASONS: usize = 50;

/// The result of a replay or a drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// Dead letters moved.
    pub moved: u64,
    /// Dead letters read.
    pub read: u64,
    /// Moved ones that were published to the tasks exchange because their lane is unknown.
    pub without_lane: u64,
    /// Matching dead letters that remain, by reason.
    pub failures: BTreeMap<String, FailedLetters>,
    /// Dead letters of the start that another program removed.
    pub missed: u64,
    /// Dead letters that arrived after the start.
    pub arrived: u64,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

/// Dead letters that remain for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FailedLetters {
    /// How many letters remain for this reason.
    pub count: u64,
    /// The first ones: ids, or kinds of those without an id.
    pub letters: Vec<String>,
}

impl MoveReport {
    /// As the record of the command has it.
    pub(crate) fn record(&self) -> Value {
        json!({
            "moved": self.moved, "read": self.read, "missed": self.missed, "failures": self.failures,
            "interrupted": self.interrupted,
        })
    }

    /// Whether every dead letter that matched at the start was moved, up to the requested limit.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.missed == 0 && !self.interrupted
    }

    /// Counts a dead letter that was moved. `to_lane` tells whether a lane takes it.
    pub(super) fn moved(&mut self, to_lane: bool) {
        self.moved += 1;
        self.without_lane += u64::from(!to_lane);
    }

    /// Records a dead letter that remains.
    pub(super) fn failed(&mut self, why: String, name: String) {
        let room = self.failures.len() < MAX_REASONS || self.failures.contains_key(&why);
        let why = if room { why } else { "other reasons".to_owned() };
        let kept = self.failures.entry(why).or_default();
        kept.count += 1;
        if kept.letters.len() < MAX_NAMED {
            kept.letters.push(name);
        }
    }

    /// Remarks for the operator, besides the number of moved messages. `done` is the past participle of the action.
    pub(super) fn remarks(&self, done: &str, held: HeldQueue, names: &Names) -> Vec<String> {
        let (queue, noun, tasks) = (held.name(names), held.noun(), names.tasks());
        let mut lines: Vec<_> = self
            .failures
            .iter()
            .map(|(why, FailedLetters { count, letters })| {
                let names: Vec<_> = letters.iter().map(|name| printable(name)).collect();
                let more = count - letters.len() as u64;
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("{count} not {done}: {why}: {}{more}", names.join(", "))
            })
            .collect();
        if self.missed > 0 {
            lines.push(format!(
                "{} not {done}: another program consumed them from {queue}; run the command again",
                self.missed
            ));
        }
        if self.interrupted {
            lines.push(format!("interrupted: {noun} that were not {done} remain in {queue}"));
        }
        if self.without_lane > 0 {
            lines.push(format!(
                "{} published to {tasks}, because no lane in the settings has a binding for their kind; without one they are unroutable",
                self.without_lane
            ));
        }
        if self.arrived > 0 {
            let returned = match held {
                HeldQueue::Unroutable => {
                    ", or replayed ones returned, because a binding is missing on the broker"
                }
                HeldQueue::Dead => "",
            };
            lines.push(format!(
                "{} more are in {queue}: they arrived during the run, or another program was holding them{returned}",
                self.arrived
            ));
        }
        lines
    }
}

/// The text that identifies a dead letter for the operator.
pub(super) fn name(letter: &DeadLetter) -> String {
    letter.id.clone().unwrap_or_else(|| format!("(no id) {}", letter.kind))
}

/// Dead letters by identity. Several can be equal in all properties, so they are counted.
#[derive(Debug, Default)]
pub(super) struct Multiset(HashMap<u64, u64>);

impl Multiset {
    pub(super) fn add(&mut self, identity: u64) {
        *self.0.entry(identity).or_default() += 1;
    }

    /// Removes one; returns whether there was one.
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
    fn equal_dead_letters_are_counted() {
        let mut letters = Multiset::default();
        [7, 7, 8].into_iter().for_each(|identity| letters.add(identity));
        assert_eq!(letters.len(), 3);
        assert_eq!([7, 9, 7, 7, 8].map(|identity| letters.take(identity)), [true, false, true, false, true]);
        assert!(letters.is_empty());
    }

    #[test]
    fn remaining_dead_letters_are_named_up_to_a_limit() {
        let mut moved = MoveReport { moved: 3, read: 100, ..MoveReport::default() };
        assert!(moved.is_complete());
        assert!(moved.remarks("replayed", HeldQueue::Dead, &Names::new("g")).is_empty());
        for n in 0..25 {
            moved.failed("no queue".into(), format!("id-{n}"));
        }
        for n in 0..2 * MAX_REASONS {
            moved.failed(format!("reason {n}"), "\x1b[2J".into());
        }
        assert!(!moved.is_complete());
        assert_eq!(moved.failures.len(), MAX_REASONS + 1);
        assert_eq!(moved.failures.values().map(|kept| kept.count).sum::<u64>(), 25 + 2 * MAX_REASONS as u64);
        let lines = moved.remarks("replayed", HeldQueue::Dead, &Names::new("g"));
        assert!(lines[0].starts_with("25 not replayed: no queue: id-0, id-1, "), "{}", lines[0]);
        assert!(lines[0].ends_with(", id-19 and 5 more"), "{}", lines[0]);
        assert_eq!(lines[2], r"1 not replayed: reason 0: \u{1b}[2J");
        assert!(lines[1].ends_with("and 31 more"), "{}", lines[1]);
    }
}
