//! What clients do: connections, channels, and frames.

use crate::{
    broker::{Life, SimBroker},
    channel::Channel,
    connection::{ArmedFault, ConnectError, Connection, Ending, Fate, Moment, Target},
    event::{Answer, CloseReason, Event},
    frame::{ConsumeOptions, Frame, Settle},
    id::{ChannelId, ConnectionId, ConsumerId, OwnerId, RequestId},
    message::Publish,
    rules::ReturnKind,
    trace::What,
};

impl SimBroker {
    /// Opens a connection.
    ///
    /// # Errors
    /// If the broker is down or frozen.
    pub fn connect(&mut self, owner: OwnerId) -> Result<ConnectionId, ConnectError> {
        match self.life {
            Life::Running => {}
            Life::Frozen => return Err(ConnectError::NoAnswer),
            Life::Down(_) => return Err(ConnectError::Refused),
        }
        let id = ConnectionId(self.connections.len() as u32);
        self.connections.push(Connection::new(owner));
        self.log(What::Connected(id, owner, self.owners[owner.index()].role));
        Ok(id)
    }

    /// Opens a channel whose consumers hold at most `prefetch` deliveries each; 0 is no limit. Publishes on it are
    /// confirmed. [`None`] if the connection has ended.
    pub fn open_channel(&mut self, connection: ConnectionId, prefetch: u16) -> Option<ChannelId> {
        if !self.is_connected(connection) {
            return None;
        }
        let id = ChannelId(self.channels.len() as u32);
        self.channels.push(Channel::new(connection, prefetch));
        self.connections[connection.index()].channels.insert(id);
        self.log(What::ChannelOpened(id, connection));
        Some(id)
    }

    /// Whether the connection is open at the broker. Its client may not know yet.
    pub fn is_connected(&self, connection: ConnectionId) -> bool {
        self.connections[connection.index()].is_open
    }

    /// Whether the channel is open at the broker. Its client may not know yet.
    pub fn is_open(&self, channel: ChannelId) -> bool {
        self.channels[channel.index()].is_open
    }

    /// Starts a consumer. [`Answer::Consuming`] follows.
    pub fn consume(
        &mut self,
        channel: ChannelId,
        queue: &str,
        options: ConsumeOptions,
    ) -> (ConsumerId, RequestId) {
        let (consumer, request) = (self.new_consumer(), self.new_request());
        self.submit(channel, Frame::Consume { queue: queue.to_owned(), consumer, options, request });
        (consumer, request)
    }

    /// Cancels a consumer. What it holds stays unacked. [`Answer::Cancelled`] follows.
    pub fn cancel(&mut self, channel: ChannelId, consumer: ConsumerId) -> RequestId {
        self.request(channel, |request| Frame::Cancel { consumer, request })
    }

    /// Takes one message. [`Answer::Got`] follows; by then the queue has applied all settlements that were sent to it, and
    /// the stash is on its way.
    pub fn get(&mut self, channel: ChannelId, queue: &str) -> RequestId {
        self.request(channel, |request| Frame::Get { queue: queue.to_owned(), request })
    }

    /// A passive declaration. [`Answer::Exists`] follows, or the channel closes: with 404 if there is no such queue, with
    /// 405 if it is exclusive to another connection.
    pub fn look_up(&mut self, channel: ChannelId, queue: &str) -> RequestId {
        self.request(channel, |request| Frame::LookUp { queue: queue.to_owned(), request })
    }

    /// Declares a classic queue that ends with the connection, bound to these exchanges with these keys. Its name must not
    /// belong to another connection (405). [`Answer::Exists`] follows.
    pub fn declare_exclusive(
        &mut self,
        channel: ChannelId,
        queue: &str,
        bindings: &[(&str, &str)],
    ) -> RequestId {
        let bindings =
            bindings.iter().map(|(exchange, key)| ((*exchange).to_owned(), (*key).to_owned())).collect();
        self.request(channel, |request| Frame::DeclareExclusive {
            queue: queue.to_owned(),
            bindings,
            request,
        })
    }

    /// `basic.ack`.
    pub fn ack(&mut self, channel: ChannelId, tag: u64, multiple: bool) {
        self.submit(channel, Frame::Settle { tag, multiple, how: Settle::Ack });
    }

    /// `basic.nack`.
    pub fn nack(&mut self, channel: ChannelId, tag: u64, multiple: bool, requeue: bool) {
        let how = if requeue { Settle::Requeue(ReturnKind::Nack) } else { Settle::Discard };
        self.submit(channel, Frame::Settle { tag, multiple, how });
    }

    /// `basic.reject`.
    pub fn reject(&mut self, channel: ChannelId, tag: u64, requeue: bool) {
        let how = if requeue { Settle::Requeue(ReturnKind::Reject) } else { Settle::Discard };
        self.submit(channel, Frame::Settle { tag, multiple: false, how });
    }

    /// `basic.publish`. Returns the number of the publish on its channel, which its confirm names.
    pub fn publish(&mut self, channel: ChannelId, publish: Publish) -> u64 {
        let state = &mut self.channels[channel.index()];
        let sequence = state.next_publish;
        state.next_publish += 1;
        self.submit(channel, Frame::Publish { publish: Box::new(publish), sequence });
        sequence
    }

    /// Closes a channel in order. [`Answer::Closed`] follows.
    pub fn close_channel(&mut self, channel: ChannelId) -> RequestId {
        self.request(channel, |request| Frame::Close { request })
    }

    /// Closes a connection in order.
    pub fn close_connection(&mut self, connection: ConnectionId) {
        if self.is_connected(connection) {
            self.end_connection(connection, Ending::Closed, CloseReason::new(200, "closed by its client"));
            self.finish_step();
        }
    }

    /// The next publishes of a process have these fates. Those after them are confirmed promptly.
    pub fn decide_fates(&mut self, owner: OwnerId, fates: impl IntoIterator<Item = Fate>) {
        self.owners[owner.index()].fates.extend(fates);
    }

    /// A fault waits for a frame of a process.
    pub fn arm(&mut self, owner: OwnerId, fault: ArmedFault) {
        self.owners[owner.index()].armed.push(fault);
    }

    fn request(&mut self, channel: ChannelId, frame: impl FnOnce(RequestId) -> Frame) -> RequestId {
        let request = self.new_request();
        self.submit(channel, frame(request));
        request
    }

    fn submit(&mut self, channel: ChannelId, frame: Frame) {
        let connection = self.channels[channel.index()].connection;
        let state = &mut self.connections[connection.index()];
        if !state.is_open {
            return;
        }
        state.unread.push_back((channel, frame));
        self.read(connection);
        self.finish_step();
    }

    /// Processes what the connection has sent, unless the broker reads nothing from it.
    pub(crate) fn read(&mut self, connection: ConnectionId) {
        loop {
            let state = &mut self.connections[connection.index()];
            if self.life != Life::Running || !state.is_open || state.is_blocked {
                return;
            }
            let Some((channel, frame)) = state.unread.pop_front() else { return };
            // The broker ignores frames of a channel that it closed.
            if !self.is_open(channel) {
                continue;
            }
            let owner = self.owner_of(channel);
            let struck = self.owners[owner.index()].strike(frame.kind());
            if struck.is_none_or(|fault| fault.moment == Moment::After) {
                self.process(channel, frame);
            }
            match struck.map(|fault| fault.target) {
                Some(Target::Channel) if self.is_open(channel) => {
                    self.log(What::Struck(channel, "the channel"));
                    self.kill_channel(channel);
                }
                Some(Target::Connection) => {
                    self.log(What::Struck(channel, "the connection"));
                    self.kill_connection(connection);
                }
                _ => {}
            }
        }
    }

    fn process(&mut self, channel: ChannelId, frame: Frame) {
        match frame {
            Frame::Consume { queue, consumer, options, request } => {
                self.start_consumer(channel, &queue, consumer, options, request);
            }
            Frame::Cancel { consumer, request } => self.cancel_consumer(channel, consumer, request),
            Frame::Get { queue, request } => self.get_one(channel, &queue, request),
            Frame::LookUp { queue, request } => self.answer_existence(channel, &queue, request),
            Frame::DeclareExclusive { queue, bindings, request } => {
                self.add_exclusive(channel, &queue, &bindings, request);
            }
            Frame::Settle { tag, multiple, how } => self.settle(channel, tag, multiple, how),
            Frame::Publish { publish, sequence } => self.accept(channel, *publish, sequence),
            Frame::Close { request } => {
                self.end_channel(channel, "closed by its client");
                self.answer(channel, request, Answer::Closed);
            }
        }
    }

    pub(crate) fn answer(&mut self, channel: ChannelId, request: RequestId, answer: Answer) {
        self.send_on(channel, Event::Answer { channel, request, answer });
    }

    pub(crate) fn finish_step(&mut self) {
        self.ledger.check(self.now);
    }
}
