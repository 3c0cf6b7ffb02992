//! A channel: its delivery tags, its confirms, and the settlements that its queues have not applied.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{
    id::{ConnectionId, ConsumerId, QueueId, Serial},
    rules::ReturnKind,
};

/// Settlement commands that a queue may have to apply before the channel stashes further ones.
const SOFT_LIMIT: usize = 32;

/// A delivery that the client has not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacked {
    pub(crate) queue: QueueId,
    pub(crate) consumer: ConsumerId,
    pub(crate) serial: Serial,
}

#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) connection: ConnectionId,
    pub(crate) is_open: bool,
    /// Prefetch of consumers that are created from now on; 0 is no limit.
    pub(crate) prefetch: u16,
    next_tag: u64,
    pub(crate) unacked: BTreeMap<u64, Unacked>,
    pub(crate) consumers: BTreeMap<ConsumerId, QueueId>,
    /// Published messages without a confirm, by their number on the channel.
    pub(crate) unconfirmed: BTreeMap<u64, Vec<Serial>>,
    pub(crate) next_publish: u64,
    pub(crate) settling: BTreeMap<QueueId, Settling>,
    /// What the client holds of a queue that was deleted, which it has not read yet.
    pub(crate) orphans: Vec<Serial>,
}

impl Channel {
    pub(crate) fn new(connection: ConnectionId, prefetch: u16) -> Self {
        Self {
            connection,
            is_open: true,
            prefetch,
            next_tag: 0,
            unacked: BTreeMap::new(),
            consumers: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            next_publish: 1,
            settling: BTreeMap::new(),
            orphans: Vec::new(),
        }
    }

    pub(crate) fn next_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Removes what a settlement frame names. [`None`] if its tag is unknown, which is a channel error.
    pub(crate) fn take(&mut self, tag: u64, multiple: bool) -> Option<Vec<Unacked>> {
        if multiple && tag == 0 {
            return Some(std::mem::take(&mut self.unacked).into_values().collect());
        }
        let named = self.unacked.remove(&tag)?;
        if !multiple {
            return Some(vec![named]);
        }
        let later = self.unacked.split_off(&tag);
        let mut taken: Vec<_> = std::mem::replace(&mut self.unacked, later).into_values().collect();
        taken.push(named);
        Some(taken)
    }

    /// Whether the client still holds this delivery.
    pub(crate) fn holds(&self, tag: u64, serial: Serial) -> bool {
        self.unacked.get(&tag).is_some_and(|it| it.serial == serial)
    }
}

/// Settlements of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) acks: Vec<Serial>,
    pub(crate) returns: Vec<(Serial, ReturnKind)>,
    pub(crate) discards: Vec<Serial>,
}

impl Command {
    fn append(&mut self, mut other: Self) {
        self.acks.append(&mut other.acks);
        self.returns.append(&mut other.returns);
        self.discards.append(&mut other.discards);
    }

    /// The messages that it settles.
    pub(crate) fn serials(&self) -> impl Iterator<Item = Serial> {
        let returns = self.returns.iter().map(|(serial, _)| *serial);
        self.acks.iter().copied().chain(returns).chain(self.discards.iter().copied())
    }
}

/// A command that a queue applies at a time.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) due: Duration,
    pub(crate) consumer: ConsumerId,
    pub(crate) command: Command,
}

/// The settlements of a channel that one queue has not applied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settling {
    /// Sent to the queue, which applies them even if the channel ends.
    pub(crate) sent: VecDeque<Sent>,
    /// Kept back because too many are sent. Lost if the channel ends.
    pub(crate) stash: BTreeMap<ConsumerId, Command>,
}

impl Settling {
    /// Sends a command, or stashes it. Returns whether it was sent.
    pub(crate) fn push(&mut self, consumer: ConsumerId, command: Command, due: Duration) -> bool {
        if !self.stash.is_empty() || self.sent.len() >= SOFT_LIMIT {
            self.stash.entry(consumer).or_default().append(command);
            return false;
        }
        self.send(consumer, command, due);
        true
    }

    /// Sends the stash. Returns the number of commands.
    pub(crate) fn send_stash(&mut self, due: Duration) -> usize {
        let stash = std::mem::take(&mut self.stash);
        let count = stash.len();
        for (consumer, command) in stash {
            self.send(consumer, command, due);
        }
        count
    }

    pub(crate) fn send(&mut self, consumer: ConsumerId, command: Command, due: Duration) {
        // A queue applies commands in the order in which they were sent.
        let due = self.sent.back().map_or(due, |last| last.due.max(due));
        self.sent.push_back(Sent { due, consumer, command });
    }

    /// Whether the stash may be sent.
    pub(crate) fn is_below_limit(&self) -> bool {
        self.sent.len() < SOFT_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settlement_takes_one_tag_or_all_up_to_it() {
        let mut channel = Channel::new(ConnectionId(0), 10);
        for tag in 1..=5 {
            let unacked = Unacked { queue: QueueId(0), consumer: ConsumerId(0), serial: Serial(tag) };
            channel.unacked.insert(tag.into(), unacked);
        }
        let mut take = |tag, multiple| {
            channel.take(tag, multiple).map(|taken| taken.iter().map(|it| it.serial.0).collect::<Vec<_>>())
        };
        assert_eq!(take(2, false), Some(vec![2]));
        assert_eq!(take(2, true), None, "a settled tag is unknown, also with multiple");
        assert_eq!(take(3, true), Some(vec![1, 3]));
        assert_eq!(take(0, true), Some(vec![4, 5]));
        assert_eq!(take(9, true), None);
    }
}
