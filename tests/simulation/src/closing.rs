//! The end of channels and connections.

use std::collections::BTreeMap;

use crate::{
    broker::{Content, SimBroker},
    connection::Ending,
    event::{Answer, CloseReason, Event},
    id::{ChannelId, ConnectionId, QueueId, RequestId},
    queue::Queue,
    rules::ReturnKind,
    trace::What,
};

use garenne_protocol::topology::{Binding, Destination, Queue as Declared, Route};

impl SimBroker {
    /// The broker closes a channel because of an error.
    pub(crate) fn close_with(&mut self, channel: ChannelId, reason: CloseReason) {
        self.end_channel(channel, &reason.text);
        self.send_on(channel, Event::ChannelClosed { channel, reason });
    }

    /// Ends a channel: queues apply what was sent to them, the stash is lost, and everything unsettled returns.
    pub(crate) fn end_channel(&mut self, channel: ChannelId, why: &str) {
        let state = &mut self.channels[channel.index()];
        if !std::mem::replace(&mut state.is_open, false) {
            return;
        }
        let unsettled = std::mem::take(&mut state.unacked).len() as u64;
        let unconfirmed = std::mem::take(&mut state.unconfirmed);
        let orphans = std::mem::take(&mut state.orphans);
        let settling: Vec<QueueId> = state.settling.keys().copied().collect();
        state.consumers.clear();
        self.counts(channel).unsettled += unsettled;
        self.log(What::ChannelEnded(channel, why.to_owned()));
        for serial in unconfirmed.into_values().flatten() {
            self.ledger.confirm_lost(serial);
            self.note(serial, What::ConfirmLost(serial));
        }
        // Its client takes them for messages that are delivered again.
        orphans.into_iter().for_each(|serial| self.ledger.orphan_lost(serial));
        for queue in settling {
            self.apply_sent(channel, queue);
        }
        let settling = std::mem::take(&mut self.channels[channel.index()].settling);
        for command in settling.into_values().flat_map(|it| it.stash.into_values()) {
            for serial in command.serials() {
                self.note(serial, What::StashDropped(serial));
            }
        }
        for queue in self.all_queues() {
            self.leave(queue, channel);
        }
    }

    fn leave(&mut self, id: QueueId, channel: ChannelId) {
        match &mut self.queues[id.index()].content {
            Content::Stream(stream) => stream.readers.retain(|it| it.channel != channel),
            Content::Queue(queue) => {
                let held = queue.remove_channel(channel);
                let returns = !held.is_empty();
                for stored in held {
                    self.give_back(id, stored, ReturnKind::Down);
                }
                if returns {
                    self.serve(id);
                }
            }
            Content::Missing => {}
        }
    }

    pub(crate) fn all_queues(&self) -> impl Iterator<Item = QueueId> + use<> {
        (0..self.queues.len() as u32).map(QueueId)
    }

    /// Ends a connection, its channels, and its exclusive queues. What it has sent and the broker has not read is lost.
    pub(crate) fn end_connection(&mut self, connection: ConnectionId, ending: Ending, reason: CloseReason) {
        let state = &mut self.connections[connection.index()];
        if !std::mem::replace(&mut state.is_open, false) {
            return;
        }
        state.unread.clear();
        let channels = std::mem::take(&mut state.channels);
        self.log(What::ConnectionEnded(connection, ending));
        for channel in channels {
            self.end_channel(channel, "its connection ended");
        }
        for id in self.all_queues() {
            if self.queue(id).is_some_and(|queue| queue.exclusive_to == Some(connection)) {
                self.lost_queues += u32::from(ending != Ending::Closed);
                self.remove_queue(id);
            }
        }
        self.events.push(Event::ConnectionClosed { connection, reason });
    }

    /// Declares an exclusive queue and binds it.
    pub(crate) fn add_exclusive(
        &mut self,
        channel: ChannelId,
        name: &str,
        bindings: &[(String, String)],
        request: RequestId,
    ) {
        let id = self.queue_id(name);
        if matches!(self.queues[id.index()].content, Content::Missing) {
            let declared = Declared { name: name.to_owned(), arguments: Default::default() };
            let mut queue = Queue::new(&declared, self.rules, self.timings.consumer_timeout);
            queue.exclusive_to = Some(self.channels[channel.index()].connection);
            self.queues[id.index()].content = Content::Queue(Box::new(queue));
            self.log(What::Declared(id));
        }
        if self.usable(channel, name).is_none() {
            return;
        }
        let names = [(self.queues[id.index()].name.clone(), id)].into();
        for (exchange, key) in bindings {
            let to = Destination::Queue(name.to_owned());
            let binding = Binding { exchange: exchange.clone(), to, key: key.clone() };
            self.exchanges.change(&Route::Bind(binding), &names);
        }
        self.answer(channel, request, Answer::Exists { ready: 0, consumers: 0 });
    }

    /// Removes a queue with its messages, and cancels its consumers.
    pub(crate) fn remove_queue(&mut self, id: QueueId) {
        let content = std::mem::replace(&mut self.queues[id.index()].content, Content::Missing);
        let mut orphans = BTreeMap::new();
        let (serials, consumers): (Vec<_>, Vec<_>) = match content {
            Content::Missing => return,
            Content::Stream(stream) => {
                (Vec::new(), stream.readers.iter().map(|it| (it.id, it.channel)).collect())
            }
            Content::Queue(queue) => {
                let active = || queue.consumers.iter().filter(|it| it.active);
                for consumer in active() {
                    // What its client has settled is not its business any more.
                    let channel = &self.channels[consumer.channel.index()];
                    let held = consumer.held.iter().filter(|(serial, it)| channel.holds(it.tag, **serial));
                    orphans.extend(held.map(|(serial, _)| (*serial, consumer.channel)));
                }
                (queue.serials().collect(), active().map(|it| (it.id, it.channel)).collect())
            }
        };
        self.exchanges.unbind(id);
        self.log(What::Deleted(id));
        for serial in serials {
            match orphans.get(&serial) {
                Some(channel) => {
                    self.channels[channel.index()].orphans.push(serial);
                    self.ledger.orphaned(serial);
                }
                None => self.ledger.deleted(serial),
            }
            self.note(serial, What::Dropped(serial, Some(id), "its queue is deleted"));
        }
        for (consumer, channel) in consumers {
            if self.channels[channel.index()].consumers.remove(&consumer).is_some() {
                self.log(What::Cancelled(consumer, id, "its queue is deleted"));
                self.send_on(channel, Event::ConsumerCancelled { channel, consumer });
            }
        }
    }
}
