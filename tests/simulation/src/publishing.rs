//! Publishes: routing, storing, and the confirm.

use std::{sync::Arc, time::Duration};

use garenne_protocol::task::header;

use crate::{
    broker::{Content, SimBroker},
    connection::Fate,
    event::{CloseReason, Event},
    id::{ChannelId, QueueId, Serial},
    message::{Death, Message, Publish, Stored},
    mishap::Mishap,
    queue::DeathReason,
    schedule::Timer,
    trace::What,
};

/// Headers of copies: a task that is published for the first time has none of them.
const OF_COPIES: [&str; 4] = [header::ATTEMPT, header::FIRST_SEEN, header::NOT_BEFORE, header::RETURNS];

impl SimBroker {
    /// Processes a publish.
    pub(crate) fn accept(&mut self, channel: ChannelId, publish: Publish, sequence: u64) {
        let Publish { message, mandatory } = publish;
        let (size, limit) = (message.body.len(), self.rules.max_body());
        if size > limit {
            let text = format!(
                "PRECONDITION_FAILED - message size {size} is larger than configured max size {limit}"
            );
            return self.close_with(channel, CloseReason::new(406, text));
        }
        let Some(targets) = self.route(&message) else {
            return self.close_with(channel, CloseReason::not_found("exchange", &message.exchange));
        };
        let owner = self.owner_of(channel);
        let fate = self.owners[owner.index()].fates.pop_front().unwrap_or(Fate::Prompt);
        let serial = self.identify(channel, &message, &targets);
        self.counts(channel).published += 1;
        self.note(serial, What::Published(channel, sequence, serial, fate));

        let message = Arc::new(message);
        let mut serials = vec![serial];
        let is_stored = fate != Fate::Refused && targets.iter().all(|queue| self.takes(*queue));
        if targets.is_empty() {
            self.ledger.unroutable(serial);
            self.note(serial, What::Unroutable(serial));
            if mandatory {
                self.send_on(channel, Event::Returned { channel, sequence, message });
            }
        } else if is_stored {
            let deaths = if self.rules.reads_published_deaths() {
                Death::published(&message.properties)
            } else {
                Vec::new()
            };
            for (nth, queue) in targets.into_iter().enumerate() {
                let serial = if nth == 0 { serial } else { self.ledger.duplicated(serial) };
                if nth > 0 {
                    serials.push(serial);
                }
                self.store(queue, serial, Arc::clone(&message), deaths.clone());
            }
        } else {
            self.note(serial, What::Refused(serial, targets[0]));
        }
        self.channels[channel.index()].unconfirmed.insert(sequence, serials);
        self.schedule_confirm(channel, sequence, fate, is_stored);
        self.block_if_alarmed(channel);
    }

    fn schedule_confirm(&mut self, channel: ChannelId, sequence: u64, fate: Fate, is_stored: bool) {
        let mut due = self.now + self.random.between(&self.timings.confirm);
        match fate {
            Fate::NeverConfirmed => {
                self.never_confirmed.push((self.now, channel));
                return self.happened(Mishap::NeverConfirmed);
            }
            Fate::LostWithConnection => {
                return self.kill_connection(self.channels[channel.index()].connection);
            }
            Fate::Late(span) => due += span,
            Fate::Prompt | Fate::Refused | Fate::RefusedButStored => {}
        }
        let acked = is_stored && fate != Fate::RefusedButStored;
        self.schedule.at(due, Timer::Confirm { channel, sequence, acked });
    }

    pub(crate) fn decide_confirm(&mut self, channel: ChannelId, sequence: u64, acked: bool) {
        if self.channels[channel.index()].unconfirmed.contains_key(&sequence) {
            self.send_on(channel, Event::Confirm { channel, sequence, acked });
        }
    }

    /// The serial of a publish. The ledger follows it if its first queue is tracked.
    fn identify(&mut self, channel: ChannelId, message: &Message, targets: &[QueueId]) -> Serial {
        let is_tracked = targets.first().is_some_and(|queue| self.queues[queue.index()].is_tracked);
        if !is_tracked || message.id().is_empty() {
            return self.ledger.untracked();
        }
        let owner = self.owner_of(channel);
        let role = self.owners[owner.index()].role;
        let headers = message.properties.headers();
        let is_copy = OF_COPIES.iter().any(|name| header::get(headers, name).is_some());
        let parent = header::get(headers, header::PARENT).and_then(header::text).filter(|_| !is_copy);
        self.ledger.published(self.now, (owner, role), message.id(), parent.as_deref())
    }

    /// The queues of a message. [`None`] if its exchange does not exist.
    pub(crate) fn route(&self, message: &Message) -> Option<Vec<QueueId>> {
        let headers = message.properties.headers();
        let mut found =
            self.exchanges.route(&message.exchange, &message.routing_key, headers, &self.names)?;
        found.retain(|queue| !matches!(self.queues[queue.index()].content, Content::Missing));
        Some(found)
    }

    /// Whether a queue stores another message.
    pub(crate) fn takes(&self, queue: QueueId) -> bool {
        match &self.queues[queue.index()].content {
            Content::Queue(queue) => queue.accepts(),
            Content::Stream(_) => true,
            Content::Missing => false,
        }
    }

    /// Stores a message in a queue, and delivers it if a consumer waits.
    pub(crate) fn store(&mut self, id: QueueId, serial: Serial, message: Arc<Message>, deaths: Vec<Death>) {
        let now = self.now;
        self.ledger.stored(serial, id);
        self.note(serial, What::Stored(serial, id));
        match &mut self.queues[id.index()].content {
            Content::Stream(stream) => stream.append(serial, message, now),
            Content::Queue(queue) => {
                let expiration = message.properties.expiration().as_ref();
                let own = expiration.and_then(|ms| ms.as_str().parse().ok()).map(Duration::from_millis);
                let expires = [own, queue.ttl].into_iter().flatten().min().map(|ttl| now + ttl);
                let stored =
                    Stored { serial, message, deaths, delivery_count: 0, acquired_count: 0, expires };
                let dropped = queue.store(stored);
                if let Some(expires) = expires {
                    self.schedule.at(expires, Timer::Expire(id));
                }
                if let Some(dropped) = dropped {
                    self.bury(id, dropped, DeathReason::MaxLength);
                }
            }
            Content::Missing => unreachable!("messages are routed to queues that exist"),
        }
        self.serve(id);
    }

    /// An alarm blocks a connection when it publishes.
    fn block_if_alarmed(&mut self, channel: ChannelId) {
        let connection = self.channels[channel.index()].connection;
        let state = &mut self.connections[connection.index()];
        if self.has_alarm && state.is_open && !std::mem::replace(&mut state.is_blocked, true) {
            self.send(connection, Event::Blocked(connection));
        }
    }
}
