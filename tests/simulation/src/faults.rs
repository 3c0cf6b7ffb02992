//! What happens to the broker and to connections.

use std::time::Duration;

use crate::{
    broker::{Life, SimBroker},
    connection::Ending,
    event::{CloseReason, Event},
    id::{ChannelId, ConnectionId, ConsumerId, OwnerId},
    trace::What,
};

impl SimBroker {
    /// The broker closes a channel because of an internal error.
    pub fn kill_channel(&mut self, channel: ChannelId) {
        if self.is_open(channel) {
            self.close_with(channel, CloseReason::new(541, "INTERNAL_ERROR"));
            self.finish_step();
        }
    }

    /// A connection breaks. What is under way in either direction is lost.
    pub fn kill_connection(&mut self, connection: ConnectionId) {
        self.end_connection(connection, Ending::Lost, CloseReason::new(0, "connection reset by peer"));
        self.finish_step();
    }

    /// Breaks the connections that have waited for so long for a confirm that never comes. Clients wait for it as long as the
    /// connection lives.
    pub fn end_waits_for_confirms(&mut self, longer_than: Duration) {
        let now = self.now;
        let ended: Vec<_> =
            self.never_confirmed.extract_if(.., |(since, _)| *since + longer_than <= now).collect();
        for (_, channel) in ended {
            if self.is_open(channel) {
                self.kill_connection(self.channels[channel.index()].connection);
            }
        }
    }

    /// A process ends without closing anything.
    pub fn crash(&mut self, owner: OwnerId) {
        for connection in self.connections_of(Some(owner)) {
            self.kill_connection(connection);
        }
        self.ledger.owner_ended(owner);
        self.finish_step();
    }

    /// The open connections of one process or of all.
    pub fn connections_of(&self, owner: Option<OwnerId>) -> Vec<ConnectionId> {
        let ids = (0..self.connections.len() as u32).map(ConnectionId);
        let is_wanted = |id: &ConnectionId| {
            let connection = &self.connections[id.index()];
            connection.is_open && owner.is_none_or(|owner| connection.owner == owner)
        };
        ids.filter(is_wanted).collect()
    }

    /// The open channels of a connection.
    pub fn channels_of(&self, connection: ConnectionId) -> Vec<ChannelId> {
        let channels = self.connections[connection.index()].channels.iter().copied();
        channels.filter(|channel| self.is_open(*channel)).collect()
    }

    /// The broker is killed and is back after a while. Connections are lost, everything unacked returns, and exclusive
    /// queues are gone. Some of the settlements that queues have not applied are lost.
    pub fn restart(&mut self, down_for: Duration) {
        self.thaw();
        self.log(What::Down(down_for));
        for channel in &mut self.channels {
            for settling in channel.settling.values_mut() {
                let kept = self.random.below(settling.sent.len() as u64 + 1);
                settling.sent.truncate(kept as usize);
            }
        }
        self.life = Life::Down(self.now + down_for);
        for connection in self.connections_of(None) {
            self.kill_connection(connection);
        }
    }

    /// Nothing is read, delivered or confirmed until [`thaw`](Self::thaw). Connections stay open.
    pub fn freeze(&mut self) {
        if self.life == Life::Running {
            self.life = Life::Frozen;
            self.log(What::Frozen(true));
        }
    }

    /// The broker goes on. What became due meanwhile happens now.
    pub fn thaw(&mut self) {
        if self.life != Life::Frozen {
            return;
        }
        self.life = Life::Running;
        self.log(What::Frozen(false));
        for connection in self.connections_of(None) {
            self.read(connection);
        }
        self.at(self.now);
        self.finish_step();
    }

    /// A resource alarm: a connection that publishes from now on is blocked.
    pub fn raise_alarm(&mut self) {
        self.has_alarm = true;
        self.log(What::Alarm(true));
    }

    /// The alarm ends, and blocked connections are read again.
    pub fn clear_alarm(&mut self) {
        self.has_alarm = false;
        self.log(What::Alarm(false));
        for connection in self.connections_of(None) {
            if std::mem::take(&mut self.connections[connection.index()].is_blocked) {
                self.send(connection, Event::Unblocked(connection));
                self.read(connection);
            }
        }
        self.finish_step();
    }

    /// Deletes a queue or a stream: consumers are cancelled, and its messages are gone, also those that are unacked.
    pub fn delete_queue(&mut self, name: &str) {
        if let Some(id) = self.names.get(name).copied() {
            self.remove_queue(id);
            self.finish_step();
        }
    }

    /// Deletes an exchange with its bindings.
    pub fn delete_exchange(&mut self, name: &str) {
        self.exchanges.delete(name);
    }

    /// The queue forgets a consumer: it delivers nothing more to it and does not tell it.
    pub fn forget_consumer(&mut self, channel: ChannelId, consumer: ConsumerId) {
        if let Some(queue) = self.channels[channel.index()].consumers.get(&consumer).copied() {
            self.stop_deliveries(queue, consumer);
            self.log(What::Cancelled(consumer, queue, "the queue forgot it"));
        }
    }
}
