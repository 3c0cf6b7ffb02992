//! A broker with a clock and a few clients.

use std::{collections::BTreeMap, time::Duration};

use amq_protocol::protocol::BasicProperties;
use bytes::Bytes;
use garenne_protocol::topology::{Arg, Exchange, ExchangeKind, Queue, Route, Topology};

use crate::*;

/// A broker that is polled, and everything that was read from it.
pub(super) struct Kit {
    pub(super) broker: SimBroker,
    pub(super) now: Duration,
    pub(super) publisher: OwnerId,
    pub(super) publishing: ChannelId,
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn text(text: &str) -> Arg {
    Arg::Text(text.to_owned())
}

pub(super) fn queue(name: &str, arguments: &[(&'static str, Arg)]) -> Queue {
    let mut arguments: BTreeMap<_, _> = arguments.iter().cloned().collect();
    arguments.entry("x-queue-type").or_insert(text("quorum"));
    Queue { name: name.to_owned(), arguments }
}

pub(super) fn exchange(name: &str, kind: ExchangeKind, arguments: &[(&'static str, Arg)]) -> Exchange {
    Exchange { name: name.to_owned(), kind, arguments: arguments.iter().cloned().collect() }
}

pub(super) fn topology(queues: Vec<Queue>, exchanges: Vec<Exchange>, routes: Vec<Route>) -> Topology {
    Topology { exchanges, queues, routes, leftovers: Vec::new(), former_rungs: Vec::new() }
}

/// Reads all confirms as their senders, who wait for them.
pub(super) fn read_confirms(broker: &mut SimBroker, events: &[Event]) {
    for event in events {
        if let Event::Confirm { channel, sequence, acked } = *event {
            broker.read_confirm(channel, sequence, acked, true);
        }
    }
}

impl Kit {
    /// With the queue `work`.
    pub(super) fn new(version: &str) -> Self {
        Self::with(version, vec![queue("work", &[])])
    }

    pub(super) fn with(version: &str, queues: Vec<Queue>) -> Self {
        Self::with_exchanges(version, queues, Vec::new(), Vec::new())
    }

    pub(super) fn with_exchanges(
        version: &str,
        queues: Vec<Queue>,
        exchanges: Vec<Exchange>,
        routes: Vec<Route>,
    ) -> Self {
        let mut broker = SimBroker::new(version.parse().unwrap(), 1, Timings::default());
        broker.declare(&topology(queues, exchanges, routes));
        broker.start_trace();
        let publisher = broker.add_owner("publisher", Role::Publisher);
        let connection = broker.connect(publisher).unwrap();
        let publishing = broker.open_channel(connection, 0).unwrap();
        Self { broker, now: Duration::ZERO, publisher, publishing }
    }

    /// Lets time pass, and returns what clients read.
    pub(super) fn pass(&mut self, span: Duration) -> Vec<Event> {
        self.now += span;
        let events = self.broker.poll(self.now);
        read_confirms(&mut self.broker, &events);
        assert_eq!(self.broker.audit(), Vec::<String>::new(), "{}", self.broker.trace().join("\n"));
        events
    }

    /// Lets everything happen that is under way.
    pub(super) fn settle(&mut self) -> Vec<Event> {
        self.pass(ms(100))
    }

    pub(super) fn publish(&mut self, queue: &str, id: &str) -> u64 {
        self.publish_on(self.publishing, queue, id)
    }

    /// Publishes a message whose id is a number.
    pub(super) fn send(&mut self, queue: &str, id: u32) {
        self.publish(queue, &id.to_string());
    }

    pub(super) fn publish_on(&mut self, channel: ChannelId, queue: &str, id: &str) -> u64 {
        self.broker.at(self.now).publish(channel, message("", queue, id))
    }

    /// A worker with a channel.
    pub(super) fn worker(&mut self, name: &str, prefetch: u16) -> (OwnerId, ChannelId) {
        let owner = self.broker.add_owner(name, Role::Worker);
        (owner, self.channel(owner, prefetch))
    }

    /// A channel on a connection of its own.
    pub(super) fn channel(&mut self, owner: OwnerId, prefetch: u16) -> ChannelId {
        let connection = self.broker.at(self.now).connect(owner).unwrap();
        self.broker.open_channel(connection, prefetch).unwrap()
    }

    pub(super) fn consume(&mut self, channel: ChannelId, queue: &str) -> ConsumerId {
        self.broker.at(self.now).consume(channel, queue, ConsumeOptions::default()).0
    }

    /// Every rule that was broken.
    pub(super) fn rules(&self) -> Vec<(String, Rule)> {
        self.broker.violations().into_iter().map(|it| (it.id, it.rule)).collect()
    }
}

pub(super) fn message(exchange: &str, key: &str, id: &str) -> Publish {
    Publish::mandatory(
        exchange,
        key,
        BasicProperties::default().with_message_id(id.into()),
        Bytes::from_static(b"x"),
    )
}

/// The deliveries of a channel.
pub(super) fn deliveries(events: &[Event], of: ChannelId) -> Vec<Delivery> {
    let own = |event: &Event| match event {
        Event::Delivery { channel, delivery } if *channel == of => Some(delivery.clone()),
        _ => None,
    };
    events.iter().filter_map(own).collect()
}

/// The ids of a channel's deliveries.
pub(super) fn ids(events: &[Event], of: ChannelId) -> Vec<String> {
    deliveries(events, of).iter().map(|it| it.message.id().to_owned()).collect()
}

/// The reply code with which a channel was closed.
pub(super) fn close_code(events: &[Event], of: ChannelId) -> Option<u16> {
    events.iter().find_map(|event| match event {
        Event::ChannelClosed { channel, reason } if *channel == of => Some(reason.code),
        _ => None,
    })
}

/// The confirms of a channel, as numbers and whether they are acks.
pub(super) fn confirms(events: &[Event], of: ChannelId) -> Vec<(u64, bool)> {
    let own = |event: &Event| match event {
        Event::Confirm { channel, sequence, acked } if *channel == of => Some((*sequence, *acked)),
        _ => None,
    };
    events.iter().filter_map(own).collect()
}

/// The answers to a channel's requests.
pub(super) fn answers(events: &[Event], of: ChannelId) -> Vec<Answer> {
    let own = |event: &Event| match event {
        Event::Answer { channel, answer, .. } if *channel == of => Some(answer.clone()),
        _ => None,
    };
    events.iter().filter_map(own).collect()
}
