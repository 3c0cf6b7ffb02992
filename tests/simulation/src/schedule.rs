//! What will happen at a later time.

use std::{cmp::Ordering, collections::BinaryHeap, time::Duration};

use crate::{
    event::Event,
    id::{ChannelId, ConnectionId, ConsumerId, QueueId, Serial},
};

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(crate) enum Timer {
    /// The client of the connection reads an event.
    Emit(ConnectionId, Event),
    /// The queue applies the oldest settlement command of the channel.
    Apply(ChannelId, QueueId),
    /// The broker decides a confirm.
    Confirm { channel: ChannelId, sequence: u64, acked: bool },
    /// A message at the head of the queue may have expired.
    Expire(QueueId),
    /// A dead letter is moved to its target.
    Transfer(QueueId, Serial),
    /// A delivery of the consumer may have exceeded the consumer timeout.
    Timeout(QueueId, ConsumerId),
}

#[derive(Clone, Debug)]
struct Entry {
    due: Duration,
    /// Keeps the order of timers with the same time.
    number: u64,
    timer: Timer,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

/// Timers in order of their time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    heap: BinaryHeap<Entry>,
    count: u64,
}

impl Schedule {
    pub(crate) fn at(&mut self, due: Duration, timer: Timer) {
        self.count += 1;
        self.heap.push(Entry { due, number: self.count, timer });
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.heap.peek().map(|entry| entry.due)
    }

    /// The next timer that is due at `now`, and its time.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<(Duration, Timer)> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|entry| (entry.due, entry.timer))
    }
}
