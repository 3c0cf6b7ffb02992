//! Connects engines to the simulated broker: their operations become frames, and its events answer them.
//!
//! Everything runs on one thread with paused time. A frame reaches the broker when it is first polled. What the broker
//! sends is read by [`Net::drive`], a millisecond of the clock at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use garenne::simulation::{ChannelError, RawDelivery};
use garenne_amqp::{PublishError, simulated::Outgoing};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};

use crate::{
    broker::SimBroker,
    channel::Unacked,
    event::{Answer, CloseReason, Event},
    id::{ChannelId, ConnectionId, ConsumerId, OwnerId, RequestId},
    message::{Delivery, Message},
    mishap::Mishap,
    watch::Watch,
};

mod consume;
mod publish;

pub(crate) use consume::ConsumeLink;
pub(crate) use publish::PublishLink;

type Delivered = Result<RawDelivery, ChannelError>;

/// The broker and what its clients wait for.
#[derive(Clone)]
pub(crate) struct Net(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    began: Instant,
    /// Something is due earlier than [`Net::drive`] knows.
    is_due: Notify,
    /// A process crashed, or a rule was broken.
    has_changed: Notify,
}

pub(crate) struct State {
    pub(crate) broker: SimBroker,
    pub(crate) watch: Watch,
    /// Processes that have crashed.
    dead: BTreeSet<OwnerId>,
    /// Crashed processes that the runner has not ended.
    pub(crate) crashed: Vec<OwnerId>,
    /// Frames until a process crashes.
    crash_after: BTreeMap<OwnerId, u32>,
    /// When [`Net::drive`] wakes up.
    wakes_at: Option<Duration>,
    answers: BTreeMap<RequestId, (ChannelId, oneshot::Sender<Result<Answer, ChannelError>>)>,
    consumers: BTreeMap<ConsumerId, (ChannelId, mpsc::UnboundedSender<Delivered>)>,
    confirms: BTreeMap<(ChannelId, u64), Unconfirmed>,
    /// What clients know of the channels of each connection. [`None`] is an open one.
    channels: BTreeMap<ChannelId, (ConnectionId, Option<CloseReason>)>,
    /// Connections whose end their clients know.
    ended: BTreeSet<ConnectionId>,
    blocked: BTreeMap<ConnectionId, Arc<AtomicBool>>,
    /// Records of streams that clients have not acked, on channels that are open to them. A worker acks a record when it has read it.
    unread: BTreeMap<(ChannelId, u64), Arc<Message>>,
}

/// A publish without a confirm.
struct Unconfirmed {
    outgoing: Outgoing,
    is_returned: bool,
}

/// A process as a client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) net: Net,
    pub(crate) owner: OwnerId,
}

impl Net {
    pub(crate) fn new(broker: SimBroker, watch: Watch) -> Self {
        let state = State {
            broker,
            watch,
            dead: BTreeSet::new(),
            crashed: Vec::new(),
            crash_after: BTreeMap::new(),
            wakes_at: None,
            answers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            confirms: BTreeMap::new(),
            channels: BTreeMap::new(),
            ended: BTreeSet::new(),
            blocked: BTreeMap::new(),
            unread: BTreeMap::new(),
        };
        let (state, began) = (Mutex::new(state), Instant::now());
        Self(Arc::new(Shared { state, began, is_due: Notify::new(), has_changed: Notify::new() }))
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// The time of the clock at this time of the history.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.0.began + at
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the broker now.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        state.broker.at(self.now());
        let result = act(&mut state);
        if state.broker.next_due().is_some_and(|due| state.wakes_at.is_none_or(|wakes| due < wakes)) {
            state.wakes_at = Some(Duration::ZERO);
            self.0.is_due.notify_one();
        }
        if !state.crashed.is_empty() || state.is_broken() {
            self.0.has_changed.notify_one();
        }
        result
    }

    /// Reads what the broker sends; never returns.
    pub(crate) async fn drive(self) {
        loop {
            let due = self.with(|state| {
                let events = state.broker.poll(self.now());
                events.into_iter().for_each(|event| state.dispatch(event));
                state.wakes_at = state.broker.next_due();
                state.wakes_at
            });
            let due = self.instant(due.unwrap_or(Duration::from_secs(86_400)));
            tokio::select! {
                biased;
                () = self.0.is_due.notified() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// Completes when a process has crashed or a rule was broken.
    pub(crate) async fn changed(&self) {
        self.0.has_changed.notified().await;
    }
}

impl Client {
    /// Does something with the broker now. [`None`] if the process has crashed.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.net.with(|state| (!state.dead.contains(&self.owner)).then(|| act(state)))
    }

    /// As [`with`](Self::with), for something that sends a frame, at which the process may crash.
    pub(crate) fn send<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.with(|state| {
            match state.crash_after.get_mut(&self.owner) {
                Some(0) => {
                    state.crash(self.owner);
                    return None;
                }
                Some(frames) => *frames -= 1,
                None => {}
            }
            Some(act(state))
        })?
    }
}

impl State {
    pub(crate) fn is_broken(&self) -> bool {
        self.broker.is_broken() || !self.watch.problems.is_empty()
    }

    /// Ends a process at once. The runner ends its tasks when it gets to it.
    pub(crate) fn crash(&mut self, owner: OwnerId) {
        if self.dead.insert(owner) {
            self.crash_after.remove(&owner);
            self.broker.remark(|| "a process crashes".to_owned());
            self.watch.crashed(owner);
            self.broker.crash(owner);
            self.crashed.push(owner);
        }
    }

    /// Closes the connections of a process that has ended in order.
    pub(crate) fn exit(&mut self, owner: OwnerId) {
        self.dead.insert(owner);
        self.crash_after.remove(&owner);
        self.watch.exited(owner);
        self.broker.crash(owner);
    }

    pub(crate) fn crash_after(&mut self, owner: OwnerId, frames: u32) {
        self.crash_after.insert(owner, frames);
    }

    /// Processes crash at no frame any more.
    pub(crate) fn spare_all(&mut self) {
        self.crash_after.clear();
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Delivery { channel, delivery } => self.deliver(channel, delivery),
            Event::Answer { channel: _, request, answer } => {
                if let Answer::Cancelled(consumer) = answer {
                    self.consumers.remove(&consumer);
                }
                if let Some((_, sender)) = self.answers.remove(&request) {
                    let _ = sender.send(Ok(answer));
                }
            }
            Event::Confirm { channel, sequence, acked } => {
                let unconfirmed = self.confirms.remove(&(channel, sequence));
                let is_awaited = unconfirmed.as_ref().is_some_and(|it| it.outgoing.is_awaited());
                self.broker.read_confirm(channel, sequence, acked, is_awaited);
                let Some(Unconfirmed { outgoing, is_returned }) = unconfirmed else { return };
                let message = outgoing.message();
                if acked && !is_returned {
                    self.watch.confirmed(self.broker.owner_of(channel), &message);
                }
                let target = message.target;
                let (exchange, routing_key) = (target.exchange, target.routing_key);
                outgoing.answer(match (is_returned, acked) {
                    (true, _) => Err(PublishError::Unroutable { exchange, routing_key }),
                    (false, true) => Ok(()),
                    (false, false) => Err(PublishError::Refused { exchange, routing_key }),
                });
            }
            Event::Returned { channel, sequence, .. } => {
                if let Some(unconfirmed) = self.confirms.get_mut(&(channel, sequence)) {
                    unconfirmed.is_returned = true;
                }
            }
            Event::ConsumerCancelled { channel, consumer } => {
                self.consumers.remove(&consumer);
                self.orphan(|it, of| of == channel && it.consumer == consumer);
            }
            Event::ChannelClosed { channel, reason } => self.channel_ended(channel, &reason),
            Event::ConnectionClosed { connection, reason } => {
                self.ended.insert(connection);
                if let Some(blocked) = self.blocked.remove(&connection) {
                    blocked.store(false, Ordering::Relaxed);
                }
                let of_connection =
                    self.channels.iter().filter(|(_, it)| it.0 == connection && it.1.is_none());
                let channels: Vec<_> = of_connection.map(|(channel, _)| *channel).collect();
                channels.into_iter().for_each(|channel| self.channel_ended(channel, &reason));
            }
            Event::Blocked(connection) => self.block(connection, true),
            Event::Unblocked(connection) => self.block(connection, false),
        }
    }

    /// Deletes the queue of a lane.
    pub(crate) fn delete_queue(&mut self, name: &str) {
        let Some(queue) = self.broker.names.get(name).copied() else { return };
        self.broker.happened(Mishap::QueueDeleted);
        self.orphan(|it, _| it.queue == queue);
        self.broker.delete_queue(name);
    }

    /// Workers hold these deliveries of a queue that was deleted, or may have been.
    fn orphan(&mut self, is_orphan: impl Fn(&Unacked, ChannelId) -> bool) {
        for (at, channel) in self.broker.channels.iter().enumerate() {
            let channel_id = ChannelId(at as u32);
            for unacked in channel.unacked.values().filter(|it| is_orphan(it, channel_id)) {
                if let Some((id, _)) = self.broker.ledger.name(unacked.serial) {
                    self.watch.orphaned(id);
                }
            }
        }
    }

    fn block(&mut self, connection: ConnectionId, is_blocked: bool) {
        if let Some(blocked) = self.blocked.get(&connection) {
            blocked.store(is_blocked, Ordering::Relaxed);
        }
    }

    fn deliver(&mut self, channel: ChannelId, delivery: Delivery) {
        let Some((_, sender)) = self.consumers.get(&delivery.consumer) else { return };
        let sender = sender.clone();
        self.note_delivery(channel, &delivery);
        let raw = RawDelivery {
            tag: delivery.tag,
            exchange: (*delivery.message.exchange).into(),
            routing_key: (*delivery.message.routing_key).into(),
            redelivered: delivery.redelivered,
            properties: delivery.properties(),
            body: delivery.message.body.to_vec(),
        };
        let _ = sender.send(Ok(raw));
    }

    fn note_delivery(&mut self, channel: ChannelId, delivery: &Delivery) {
        if delivery.offset.is_some() {
            self.unread.insert((channel, delivery.tag), Arc::clone(&delivery.message));
            return;
        }
        let owner = self.broker.owner_of(channel);
        let unacked = self.broker.channels[channel.index()].unacked.get(&delivery.tag);
        let queue = unacked.map(|unacked| Arc::clone(&self.broker.queues[unacked.queue.index()].name));
        self.watch.delivered(owner, delivery, queue.as_deref(), self.broker.now);
    }

    /// A client acks a record of a stream, or the delivery of a queue.
    fn acked(&mut self, channel: ChannelId, tag: u64) {
        if let Some(record) = self.unread.remove(&(channel, tag)) {
            let owner = self.broker.owner_of(channel);
            self.watch.record_read(owner, &record, self.broker.now);
        }
    }

    /// The client of a channel learns that it has ended.
    fn channel_ended(&mut self, channel: ChannelId, reason: &CloseReason) {
        let Some((_, known @ None)) = self.channels.get_mut(&channel) else { return };
        *known = Some(reason.clone());
        self.unread.retain(|(of, _), _| *of != channel);
        let error = error_of(reason);
        let consumers: Vec<_> = self.consumers.extract_if(.., |_, it| it.0 == channel).collect();
        for (_, (_, sender)) in consumers {
            let _ = sender.send(Err(error.clone()));
        }
        let answers: Vec<_> = self.answers.extract_if(.., |_, it| it.0 == channel).collect();
        for (_, (_, sender)) in answers {
            let _ = sender.send(Err(error.clone()));
        }
        let confirms: Vec<_> = self.confirms.extract_if(.., |it, _| it.0 == channel).collect();
        for (_, unconfirmed) in confirms {
            unconfirmed.outgoing.answer(Err(PublishError::InDoubt(error.text.clone())));
        }
    }

    /// Why the client knows that the channel has ended.
    fn end_of(&self, channel: ChannelId) -> Option<ChannelError> {
        self.channels.get(&channel)?.1.as_ref().map(error_of)
    }

    /// The client closed the channel. What waits for a confirm on it is in doubt.
    fn forget(&mut self, channel: ChannelId) {
        self.channel_ended(channel, &CloseReason::new(200, "closed by its client"));
        self.channels.remove(&channel);
    }

    fn knows_as_open(&self, connection: ConnectionId) -> bool {
        !self.ended.contains(&connection)
    }
}

fn error_of(reason: &CloseReason) -> ChannelError {
    let CloseReason { code, text } = reason;
    ChannelError { reply: (*code != 0).then(|| (*code, text.clone())), text: text.clone() }
}
