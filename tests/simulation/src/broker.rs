//! The broker: its state, its clock, and the events that clients will read.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc, time::Duration};

use garenne_protocol::topology::{BrokerVersion, Queue as Declared, Step, Topology};

use crate::{
    channel::Channel,
    connection::{Connection, Counts, Owner, Role, is_reading},
    event::Event,
    exchange::{Exchanges, QueueNames},
    id::{ChannelId, ConnectionId, ConsumerId, OwnerId, QueueId, RequestId, Serial},
    ledger::Ledger,
    mishap::Mishap,
    queue::Queue,
    random::Random,
    rules::Rules,
    schedule::{Schedule, Timer},
    stream::Stream,
    trace::{Names, Trace, What, line},
};

/// How long things take. Each duration is chosen at random.
#[derive(Clone, Debug)]
pub struct Timings {
    /// From the broker to a client.
    pub event: RangeInclusive<Duration>,
    /// From a publish to its confirm at the broker.
    pub confirm: RangeInclusive<Duration>,
    /// From a settlement frame to the moment at which the queue has applied it.
    pub settle: RangeInclusive<Duration>,
    /// From the death of a message to its arrival at its dead-letter target.
    pub dead_letter: RangeInclusive<Duration>,
    /// Until a dead letter without a target, or with one that refuses it, is tried again.
    pub dead_letter_retry: Duration,
    /// The consumer timeout of queues that have none of their own.
    pub consumer_timeout: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        let up_to = |micros| Duration::from_micros(50)..=Duration::from_micros(micros);
        Self {
            event: up_to(500),
            confirm: up_to(2_000),
            settle: up_to(5_000),
            dead_letter: up_to(5_000),
            dead_letter_retry: Duration::from_secs(180),
            consumer_timeout: Duration::from_secs(30 * 60),
        }
    }
}

/// What a queue name stands for now.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Queue(Box<Queue>),
    Stream(Stream),
    /// It was deleted.
    Missing,
}

/// A queue, and what the ledger makes of its messages.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) name: Arc<str>,
    pub(crate) content: Content,
    /// Whether the ledger follows its messages.
    pub(crate) is_tracked: bool,
    /// Whether a message is finished here.
    pub(crate) is_end: bool,
    /// The prefetch that its consumers are configured with, if that is known.
    pub(crate) prefetch: Option<usize>,
}

/// Whether the broker does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    /// It reads and sends nothing.
    Frozen,
    /// It restarts, and is back at this time.
    Down(Duration),
}

/// A RabbitMQ broker as a state machine: no I/O, no threads, no clock of its own.
///
/// Call [`at`](Self::at) before each operation, and [`poll`](Self::poll) at or after [`next_due`](Self::next_due) to
/// receive what clients read. Operations of a channel or connection that has ended do nothing, as frames written to a
/// closed socket.
#[derive(Clone, Debug)]
pub struct SimBroker {
    pub(crate) version: BrokerVersion,
    pub(crate) rules: Rules,
    pub(crate) timings: Timings,
    pub(crate) random: Random,
    pub(crate) now: Duration,
    /// How many control queues were deleted with connections that their clients did not close.
    pub(crate) lost_queues: u32,
    pub(crate) life: Life,
    pub(crate) has_alarm: bool,
    pub(crate) schedule: Schedule,
    pub(crate) events: Vec<Event>,
    /// The publishes whose confirms are among the events, or were and are not read yet.
    unread_confirms: BTreeMap<(ChannelId, u64), Vec<Serial>>,
    pub(crate) exchanges: Exchanges,
    pub(crate) names: QueueNames,
    pub(crate) queues: Vec<Slot>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) consumers: u32,
    pub(crate) requests: u32,
    pub(crate) ledger: Ledger,
    pub(crate) trace: Trace,
    /// When publishes were stored whose confirm never comes, and their channels.
    pub(crate) never_confirmed: Vec<(Duration, ChannelId)>,
    mishaps: BTreeMap<Mishap, usize>,
}

impl SimBroker {
    /// A broker of this version without queues. Equal seeds and operations give equal histories.
    pub fn new(version: BrokerVersion, seed: u64, timings: Timings) -> Self {
        Self {
            version,
            rules: Rules::new(version),
            timings,
            random: Random::new(seed),
            now: Duration::ZERO,
            lost_queues: 0,
            life: Life::Running,
            has_alarm: false,
            schedule: Schedule::default(),
            events: Vec::new(),
            unread_confirms: BTreeMap::new(),
            exchanges: Exchanges::default(),
            names: QueueNames::new(),
            queues: Vec::new(),
            owners: Vec::new(),
            connections: Vec::new(),
            channels: Vec::new(),
            consumers: 0,
            requests: 0,
            ledger: Ledger::default(),
            trace: Trace::default(),
            never_confirmed: Vec::new(),
            mishaps: BTreeMap::new(),
        }
    }

    /// The broker's version.
    pub fn version(&self) -> BrokerVersion {
        self.version
    }

    /// Replaces the source of chance, so that a prepared broker can be cloned for many histories.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Random::new(seed);
    }

    /// Sets the time since the start, and lets everything happen that is due by then. Time does not go back.
    pub fn at(&mut self, now: Duration) -> &mut Self {
        self.run_due(now);
        self.now = self.now.max(now);
        self
    }

    /// The time at which [`poll`](Self::poll) has something to do. [`None`] if nothing will happen by itself.
    pub fn next_due(&self) -> Option<Duration> {
        match self.life {
            _ if !self.events.is_empty() => Some(self.now),
            Life::Running => self.schedule.next_due(),
            Life::Frozen => None,
            Life::Down(until) => Some(until),
        }
    }

    /// What reaches clients until now, in order. Call [`read_confirm`](Self::read_confirm) for each confirm.
    pub fn poll(&mut self, now: Duration) -> Vec<Event> {
        self.at(now);
        self.ledger.check(self.now);
        std::mem::take(&mut self.events)
    }

    fn run_due(&mut self, until: Duration) {
        if let Life::Down(back) = self.life
            && back <= until
        {
            self.now = self.now.max(back);
            self.life = Life::Running;
        }
        if self.life != Life::Running {
            return;
        }
        while let Some((due, timer)) = self.schedule.pop(until) {
            // While the broker was frozen or down, time went on without it.
            self.now = self.now.max(due);
            match timer {
                Timer::Emit(connection, event) => self.emit(connection, event),
                Timer::Apply(channel, queue) => self.apply_due(channel, queue),
                Timer::Confirm { channel, sequence, acked } => self.decide_confirm(channel, sequence, acked),
                Timer::Expire(queue) => self.serve(queue),
                Timer::Transfer(queue, serial) => self.transfer(queue, serial),
                Timer::Timeout(queue, consumer) => self.check_timeout(queue, consumer),
            }
            if self.life != Life::Running {
                return;
            }
        }
    }

    /// Sends an event, which the client reads a little later and after all earlier ones.
    pub(crate) fn send(&mut self, connection: ConnectionId, event: Event) {
        let due = self.now + self.random.between(&self.timings.event);
        let connection_state = &mut self.connections[connection.index()];
        connection_state.last_event = connection_state.last_event.max(due);
        self.schedule.at(connection_state.last_event, Timer::Emit(connection, event));
    }

    /// The client reads an event, unless its connection ended before.
    fn emit(&mut self, connection: ConnectionId, event: Event) {
        if !is_reading(&self.connections, connection) {
            return;
        }
        if let Event::Confirm { channel, sequence, acked } = event {
            let Some(serials) = self.channels[channel.index()].unconfirmed.remove(&sequence) else { return };
            self.counts(channel).confirmed += u64::from(acked);
            self.unread_confirms.insert((channel, sequence), serials);
        }
        if let Event::ConsumerCancelled { channel, .. } = event
            && !std::mem::take(&mut self.channels[channel.index()].orphans).is_empty()
        {
            self.happened(Mishap::Orphaned);
        }
        self.events.push(event);
    }

    /// The client reads a confirm. It learns nothing from it if nothing in it waits for the confirm any more.
    pub fn read_confirm(&mut self, channel: ChannelId, sequence: u64, acked: bool, is_awaited: bool) {
        for serial in self.unread_confirms.remove(&(channel, sequence)).into_iter().flatten() {
            if is_awaited {
                self.ledger.confirmed(serial, acked);
                self.note(serial, What::Confirmed(channel, sequence, acked));
            } else {
                self.ledger.confirm_lost(serial);
                self.note(serial, What::ConfirmLost(serial));
            }
        }
        self.ledger.check(self.now);
    }

    pub(crate) fn send_on(&mut self, channel: ChannelId, event: Event) {
        self.send(self.channels[channel.index()].connection, event);
    }

    /// Declares everything of a topology, as an administrator. What exists stays as it is.
    pub fn declare(&mut self, topology: &Topology) {
        for step in topology.steps() {
            match step {
                Step::Queue(queue) => self.declare_queue(queue),
                Step::Exchange(exchange) => self.exchanges.declare(exchange),
                Step::Route(route) => self.exchanges.change(route, &self.existing_names()),
            }
        }
    }

    /// Declares a topology again if one of its queues was deleted.
    pub(crate) fn restore(&mut self, topology: &Topology) {
        let existing = self.existing_names();
        let is_missing =
            |step: &Step<'_>| matches!(step, Step::Queue(it) if !existing.contains_key(it.name.as_str()));
        if topology.steps().iter().any(is_missing) {
            self.declare(topology);
        }
    }

    /// Sets the consumer timeout of all queues, as a policy does. Consumers that hold messages keep theirs.
    pub(crate) fn set_consumer_timeout(&mut self, timeout: Duration) {
        self.timings.consumer_timeout = timeout;
        for id in self.all_queues() {
            if let Some(queue) = self.queue(id) {
                queue.consumer_timeout = timeout;
            }
        }
    }

    /// Declares one queue or stream.
    pub fn declare_queue(&mut self, declared: &Declared) {
        let id = self.queue_id(&declared.name);
        let slot = &mut self.queues[id.index()];
        if !matches!(slot.content, Content::Missing) {
            return;
        }
        slot.content = if declared.is_stream() {
            Content::Stream(Stream::new(declared))
        } else {
            Content::Queue(Box::new(Queue::new(declared, self.rules, self.timings.consumer_timeout)))
        };
        slot.is_tracked = !declared.is_stream();
        self.log(What::Declared(id));
    }

    /// Tells the ledger what a queue is for. Messages of a queue that is not tracked follow no rule; in an end, such as
    /// the queue of dead letters, messages are finished.
    pub fn set_use(&mut self, queue: &str, is_tracked: bool, is_end: bool) {
        let id = self.queue_id(queue);
        (self.queues[id.index()].is_tracked, self.queues[id.index()].is_end) = (is_tracked, is_end);
    }

    /// No consumer of the queue may have a larger prefetch.
    pub(crate) fn limit_prefetch(&mut self, queue: &str, prefetch: u16) {
        let id = self.queue_id(queue);
        self.queues[id.index()].prefetch = Some(prefetch.into());
    }

    pub(crate) fn queue_id(&mut self, name: &str) -> QueueId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let (id, name): (_, Arc<str>) = (QueueId(self.queues.len() as u32), name.into());
        self.names.insert(Arc::clone(&name), id);
        self.queues.push(Slot {
            name,
            content: Content::Missing,
            is_tracked: false,
            is_end: false,
            prefetch: None,
        });
        id
    }

    /// Names of queues that exist.
    pub(crate) fn existing_names(&self) -> QueueNames {
        let exists = |id: QueueId| !matches!(self.queues[id.index()].content, Content::Missing);
        self.names.iter().filter(|(_, id)| exists(**id)).map(|(name, id)| (Arc::clone(name), *id)).collect()
    }

    /// The queue, if it exists and is no stream.
    pub(crate) fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
        match &mut self.queues[id.index()].content {
            Content::Queue(queue) => Some(queue),
            _ => None,
        }
    }

    /// Adds a process, which may open connections.
    pub fn add_owner(&mut self, name: &str, role: Role) -> OwnerId {
        let owner = Owner {
            name: name.into(),
            role,
            fates: Default::default(),
            armed: Vec::new(),
            counts: Counts::default(),
        };
        self.owners.push(owner);
        OwnerId(self.owners.len() as u32 - 1)
    }

    pub(crate) fn owner_of(&self, channel: ChannelId) -> OwnerId {
        self.connections[self.channels[channel.index()].connection.index()].owner
    }

    pub(crate) fn counts(&mut self, channel: ChannelId) -> &mut Counts {
        let owner = self.owner_of(channel);
        &mut self.owners[owner.index()].counts
    }

    pub(crate) fn new_consumer(&mut self) -> ConsumerId {
        self.consumers += 1;
        ConsumerId(self.consumers)
    }

    pub(crate) fn new_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Records something that concerns no single message.
    pub(crate) fn log(&mut self, what: What) {
        self.trace.push(self.now, what);
    }

    /// Records something of a message, in its history too.
    pub(crate) fn note(&mut self, serial: Serial, what: What) {
        self.ledger.record(self.now, serial, &what);
        self.trace.push(self.now, what);
    }

    /// Counts something rare.
    pub(crate) fn happened(&mut self, mishap: Mishap) {
        *self.mishaps.entry(mishap).or_default() += 1;
    }

    /// How often rare things happened.
    pub fn mishaps(&self) -> &BTreeMap<Mishap, usize> {
        &self.mishaps
    }

    /// Records all operations and events from now on.
    pub fn start_trace(&mut self) {
        self.trace.start();
    }

    /// Adds a line of the caller's to the trace, such as a step of the history.
    pub fn remark(&mut self, text: impl FnOnce() -> String) {
        if self.trace.is_on() {
            let text = text();
            self.log(What::Note(text));
        }
    }

    /// The trace so far, a line an operation or event.
    pub fn trace(&self) -> Vec<String> {
        self.trace.lines(self)
    }

    pub(crate) fn line(&self, (at, what): &(Duration, What)) -> String {
        line(*at, what, self)
    }
}

impl Names for SimBroker {
    fn queue(&self, id: QueueId) -> &str {
        &self.queues[id.index()].name
    }

    fn owner_of(&self, id: ChannelId) -> &str {
        self.owner(SimBroker::owner_of(self, id))
    }

    fn owner(&self, id: OwnerId) -> &str {
        &self.owners[id.index()].name
    }

    fn message(&self, serial: Serial) -> String {
        match self.ledger.name(serial) {
            Some((id, 1)) => format!("{id} ({serial})"),
            Some((id, number)) => format!("{id} ({serial}, instance {number})"),
            None => format!("an untracked message ({serial})"),
        }
    }
}
