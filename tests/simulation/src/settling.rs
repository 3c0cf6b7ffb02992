//! Acks, nacks and rejects: from a frame to the moment at which the queue has applied it.

use crate::{
    broker::{Content, SimBroker},
    channel::{Command, Unacked},
    event::CloseReason,
    frame::Settle,
    id::{ChannelId, ConsumerId, QueueId, Serial},
    queue::DeathReason,
    rules::ReturnKind,
    schedule::Timer,
    trace::What,
};

impl SimBroker {
    /// Processes a settlement frame.
    pub(crate) fn settle(&mut self, channel: ChannelId, tag: u64, multiple: bool, how: Settle) {
        self.log(What::Settle(channel, tag, multiple, how));
        let Some(taken) = self.channels[channel.index()].take(tag, multiple) else {
            return self.close_with(channel, CloseReason::unknown_tag(tag));
        };
        let is_queue = |it: &&Unacked| matches!(self.queues[it.queue.index()].content, Content::Queue(_));
        let settled = taken.iter().filter(is_queue).count() as u64;
        let counts = self.counts(channel);
        match how {
            Settle::Ack => counts.acked += settled,
            Settle::Requeue(_) => counts.requeued += settled,
            Settle::Discard => counts.discarded += settled,
        }
        let mut commands: Vec<(QueueId, ConsumerId, Command)> = Vec::new();
        for Unacked { queue, consumer, serial } in taken {
            self.ledger.record(self.now, serial, &What::Settle(channel, tag, multiple, how));
            if self.is_held(queue, consumer, serial) {
                self.ledger.settled(self.now, serial, how);
            } else if how != Settle::Ack {
                // The frame crosses the message that the queue is deleted.
                self.ledger.orphan_lost(serial);
            }
            if let Content::Stream(stream) = &mut self.queues[queue.index()].content {
                stream.readers.iter_mut().filter(|it| it.id == consumer).for_each(|it| it.credit += 1);
                self.serve(queue);
                continue;
            }
            let at = commands.iter().position(|it| (it.0, it.1) == (queue, consumer)).unwrap_or_else(|| {
                commands.push((queue, consumer, Command::default()));
                commands.len() - 1
            });
            let command = &mut commands[at].2;
            match how {
                Settle::Ack => command.acks.push(serial),
                Settle::Requeue(kind) => command.returns.push((serial, kind)),
                Settle::Discard => command.discards.push(serial),
            }
        }
        for (queue, consumer, command) in commands {
            self.send_command(channel, queue, consumer, command, how);
        }
    }

    /// Whether the delivery was not returned meanwhile by a consumer timeout or a deletion.
    fn is_held(&mut self, queue: QueueId, consumer: ConsumerId, serial: Serial) -> bool {
        let consumer = self.queue(queue).and_then(|queue| queue.consumer(consumer));
        consumer.is_some_and(|it| it.held.contains_key(&serial))
    }

    /// Sends a command to the queue, or stashes it if the queue has too many to apply.
    fn send_command(
        &mut self,
        channel: ChannelId,
        queue: QueueId,
        consumer: ConsumerId,
        command: Command,
        how: Settle,
    ) {
        let due = self.now + self.random.between(&self.timings.settle);
        let sends_stash = how == Settle::Requeue(ReturnKind::Reject) && self.rules.reject_sends_stash();
        let settling = self.channels[channel.index()].settling.entry(queue).or_default();
        if sends_stash {
            settling.send_stash(due);
            settling.send(consumer, command, due);
        } else {
            let serials: Vec<Serial> = command.serials().collect();
            if !settling.push(consumer, command, due) {
                for serial in serials {
                    self.note(serial, What::Stashed(Unacked { queue, consumer, serial }));
                }
                return;
            }
        }
        self.schedule_apply(channel, queue);
    }

    fn schedule_apply(&mut self, channel: ChannelId, queue: QueueId) {
        let settling = &self.channels[channel.index()].settling;
        if let Some(first) = settling.get(&queue).and_then(|it| it.sent.front()) {
            self.schedule.at(first.due, Timer::Apply(channel, queue));
        }
    }

    /// The queue applies the oldest command if it is due.
    pub(crate) fn apply_due(&mut self, channel: ChannelId, queue: QueueId) {
        let now = self.now;
        let Some(settling) = self.channels[channel.index()].settling.get_mut(&queue) else { return };
        let Some(sent) = settling.sent.pop_front_if(|first| first.due <= now) else { return };
        self.apply(queue, sent.consumer, sent.command);
        self.send_stash_below_limit(channel, queue);
        self.schedule_apply(channel, queue);
        self.serve(queue);
    }

    fn send_stash_below_limit(&mut self, channel: ChannelId, queue: QueueId) {
        let due = self.now + self.random.between(&self.timings.settle);
        let Some(settling) = self.channels[channel.index()].settling.get_mut(&queue) else { return };
        if settling.is_below_limit() && settling.send_stash(due) > 0 {
            self.log(What::Unstashed(queue, channel));
        }
    }

    /// The queue applies everything that was sent to it, and gets the stash.
    pub(crate) fn flush(&mut self, channel: ChannelId, queue: QueueId) {
        self.apply_sent(channel, queue);
        self.send_stash_below_limit(channel, queue);
        self.schedule_apply(channel, queue);
    }

    /// The queue applies everything that was sent to it.
    pub(crate) fn apply_sent(&mut self, channel: ChannelId, queue: QueueId) {
        let Some(settling) = self.channels[channel.index()].settling.get_mut(&queue) else { return };
        for sent in std::mem::take(&mut settling.sent) {
            self.apply(queue, sent.consumer, sent.command);
        }
    }

    fn apply(&mut self, id: QueueId, consumer: ConsumerId, command: Command) {
        let Command { acks, returns, discards } = command;
        // What the consumer does not hold any more is ignored: it timed out, or the queue was deleted meanwhile.
        for serial in acks {
            if self.queue(id).and_then(|queue| queue.release(consumer, serial)).is_some() {
                self.ledger.applied(serial);
                self.note(serial, What::Applied(serial, id));
            }
        }
        for (serial, kind) in returns {
            if let Some(stored) = self.queue(id).and_then(|queue| queue.release(consumer, serial)) {
                self.give_back(id, stored, kind);
            }
        }
        for serial in discards {
            if let Some(stored) = self.queue(id).and_then(|queue| queue.release(consumer, serial)) {
                self.bury(id, stored, DeathReason::Rejected);
            }
        }
    }
}
