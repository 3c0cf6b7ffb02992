//! A queue: its arguments, its messages, and its consumers. It knows nothing of channels but their names.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use garenne_protocol::topology::{Arg, Queue as Declared};

use crate::{
    id::{ChannelId, ConnectionId, ConsumerId, Serial},
    message::Stored,
    rules::{ReturnKind, Rules},
};

/// Where dead letters go.
#[derive(Clone, Debug)]
pub(crate) struct DeadLettering {
    pub(crate) exchange: Arc<str>,
    /// Replaces the routing key.
    pub(crate) key: Option<Arc<str>>,
    /// A dead letter stays until its target has confirmed it. Otherwise it is lost if it has none.
    pub(crate) at_least_once: bool,
}

/// A consumer of a queue, with what it holds.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) id: ConsumerId,
    pub(crate) channel: ChannelId,
    pub(crate) no_ack: bool,
    pub(crate) prefetch: usize,
    /// Whether it gets more messages. Without, it is removed once it holds none.
    pub(crate) active: bool,
    pub(crate) held: BTreeMap<Serial, Held>,
    /// A timer for the consumer timeout is set.
    pub(crate) has_timer: bool,
}

/// A message that a consumer holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) stored: Stored,
    pub(crate) tag: u64,
    pub(crate) since: Duration,
    /// The order of deliveries, which returns keep.
    order: u64,
}

/// A quorum queue, or the classic queue of a worker's commands.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    rules: Rules,
    limit: Option<i64>,
    pub(crate) ttl: Option<Duration>,
    max_length: Option<usize>,
    reject_publish: bool,
    pub(crate) dead_lettering: Option<DeadLettering>,
    pub(crate) consumer_timeout: Duration,
    /// The only connection that may use it, and that it ends with.
    pub(crate) exclusive_to: Option<ConnectionId>,
    /// Returned messages, ahead of all others.
    returned: VecDeque<Stored>,
    ready: VecDeque<Stored>,
    pub(crate) consumers: Vec<Consumer>,
    /// Consumers with credit, in the order in which they are served. One that gets credit again is the last.
    waiting: VecDeque<ConsumerId>,
    orders: u64,
    /// Dead letters that their target has not confirmed.
    pub(crate) leaving: BTreeMap<Serial, (Stored, DeathReason)>,
}

/// Why a message was dead-lettered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeathReason {
    Expired,
    Rejected,
    DeliveryLimit,
    MaxLength,
}

impl DeathReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Rejected => "rejected",
            Self::DeliveryLimit => "delivery_limit",
            Self::MaxLength => "maxlen",
        }
    }
}

impl Queue {
    pub(crate) fn new(declared: &Declared, rules: Rules, consumer_timeout: Duration) -> Self {
        let text = |name: &str| match declared.arguments.get(name) {
            Some(Arg::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        let number = |name: &str| match declared.arguments.get(name) {
            Some(Arg::Number(number)) => Some(*number),
            _ => None,
        };
        let span = |name| number(name).map(|ms| Duration::from_millis(ms.try_into().unwrap_or(0)));
        let reject_publish = text("x-overflow") == Some("reject-publish");
        let dead_lettering = text("x-dead-letter-exchange").map(|exchange| DeadLettering {
            exchange: exchange.into(),
            key: text("x-dead-letter-routing-key").map(Into::into),
            at_least_once: text("x-dead-letter-strategy") == Some("at-least-once") && reject_publish,
        });
        Self {
            rules,
            limit: rules.delivery_limit(number("x-delivery-limit")),
            ttl: span("x-message-ttl"),
            max_length: number("x-max-length").and_then(|n| n.try_into().ok()),
            reject_publish,
            dead_lettering,
            consumer_timeout: span("x-consumer-timeout").unwrap_or(consumer_timeout),
            exclusive_to: None,
            returned: VecDeque::new(),
            ready: VecDeque::new(),
            consumers: Vec::new(),
            waiting: VecDeque::new(),
            orders: 0,
            leaving: BTreeMap::new(),
        }
    }

    /// The number of ready messages.
    pub(crate) fn len(&self) -> usize {
        self.returned.len() + self.ready.len()
    }

    /// Whether it stores another message. A full queue that drops its head does.
    pub(crate) fn accepts(&self) -> bool {
        !self.reject_publish || self.max_length.is_none_or(|max| self.len() < max)
    }

    /// Stores a message at the tail. Returns the one that a full queue drops.
    pub(crate) fn store(&mut self, stored: Stored) -> Option<Stored> {
        self.ready.push_back(stored);
        let is_over = self.max_length.is_some_and(|max| self.len() > max);
        if is_over && !self.reject_publish { self.take() } else { None }
    }

    fn take(&mut self) -> Option<Stored> {
        self.returned.pop_front().or_else(|| self.ready.pop_front())
    }

    /// Removes the message at the head if it has expired.
    pub(crate) fn take_expired(&mut self, now: Duration) -> Option<Stored> {
        let head = self.returned.front().or(self.ready.front())?;
        if head.expires? <= now { self.take() } else { None }
    }

    /// Adds a consumer that the queue delivers to.
    pub(crate) fn subscribe(&mut self, consumer: Consumer) {
        self.waiting.push_back(consumer.id);
        self.consumers.push(consumer);
    }

    /// The consumer that gets the next message. [`None`] without a message or a consumer with credit.
    pub(crate) fn next_consumer(&mut self) -> Option<usize> {
        if self.len() == 0 {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.consumers.iter().position(|it| it.id == next)
    }

    /// Lets a consumer with credit wait for a message, after all that wait already.
    fn queue_up(&mut self, at: usize) {
        let Consumer { id, active, ref held, prefetch, .. } = self.consumers[at];
        if active && held.len() < prefetch && !self.waiting.contains(&id) {
            self.waiting.push_back(id);
        }
    }

    /// Gives the message at the head to a consumer, who holds it from now on unless it needs no ack.
    pub(crate) fn check_out(&mut self, consumer: usize, tag: u64, now: Duration) -> Option<Stored> {
        let stored = self.take()?;
        self.orders += 1;
        if !self.consumers[consumer].no_ack {
            let held = Held { stored: stored.clone(), tag, since: now, order: self.orders };
            self.consumers[consumer].held.insert(stored.serial, held);
        }
        self.queue_up(consumer);
        Some(stored)
    }

    pub(crate) fn consumer(&mut self, id: ConsumerId) -> Option<&mut Consumer> {
        self.consumers.iter_mut().find(|it| it.id == id)
    }

    /// Takes a message from a consumer who settled it. [`None`] if the consumer does not hold it any more.
    pub(crate) fn release(&mut self, id: ConsumerId, serial: Serial) -> Option<Stored> {
        let at = self.consumers.iter().position(|it| it.id == id)?;
        let held = self.consumers[at].held.remove(&serial)?;
        if !self.consumers[at].active && self.consumers[at].held.is_empty() {
            self.remove(at);
        } else {
            self.queue_up(at);
        }
        Some(held.stored)
    }

    fn remove(&mut self, at: usize) {
        let removed = self.consumers.remove(at);
        self.waiting.retain(|id| *id != removed.id);
    }

    /// Stops deliveries to a consumer, who keeps what it holds.
    pub(crate) fn cancel(&mut self, id: ConsumerId) {
        let Some(at) = self.consumers.iter().position(|it| it.id == id) else { return };
        self.consumers[at].active = false;
        self.waiting.retain(|waiting| *waiting != id);
        if self.consumers[at].held.is_empty() {
            self.remove(at);
        }
    }

    /// Removes the consumers of a channel. Returns what they held, in the order of its deliveries.
    pub(crate) fn remove_channel(&mut self, channel: ChannelId) -> Vec<Stored> {
        let mut held = Vec::new();
        while let Some(at) = self.consumers.iter().position(|it| it.channel == channel) {
            held.extend(std::mem::take(&mut self.consumers[at].held).into_values());
            self.remove(at);
        }
        held.sort_by_key(|it| it.order);
        held.into_iter().map(|it| it.stored).collect()
    }

    /// Cancels a consumer that held a message for too long, as 4.3 does. Returns what it held for that long.
    pub(crate) fn time_out(&mut self, id: ConsumerId, now: Duration) -> Vec<Stored> {
        let timeout = self.consumer_timeout;
        let Some(consumer) = self.consumer(id) else { return Vec::new() };
        let is_late = |held: &mut Held| held.since + timeout <= now;
        let mut late: Vec<_> =
            consumer.held.extract_if(.., |_, held| is_late(held)).map(|(_, it)| it).collect();
        late.sort_by_key(|it| it.order);
        if !late.is_empty() {
            self.cancel(id);
        }
        late.into_iter().map(|it| it.stored).collect()
    }

    /// Puts a message back. Returns it if it exceeded the delivery limit.
    pub(crate) fn give_back(&mut self, mut stored: Stored, kind: ReturnKind) -> Result<(), Stored> {
        stored.acquired_count += 1;
        stored.delivery_count += u32::from(self.rules.counts(kind));
        if self.limit.is_some_and(|limit| i64::from(stored.delivery_count) > limit) {
            return Err(stored);
        }
        if self.rules.lands_at_tail(kind, self.limit) {
            self.ready.push_back(stored);
        } else {
            self.returned.push_back(stored);
        }
        Ok(())
    }

    /// Every message of the queue: ready, held, and on its way to a dead-letter exchange.
    pub(crate) fn serials(&self) -> impl Iterator<Item = Serial> {
        let ready = self.returned.iter().chain(&self.ready).map(|it| it.serial);
        let held = self.consumers.iter().flat_map(|it| it.held.keys().copied());
        ready.chain(held).chain(self.leaving.keys().copied())
    }

    /// Messages that consumers hold.
    pub(crate) fn held(&self) -> usize {
        self.consumers.iter().map(|it| it.held.len()).sum()
    }
}
