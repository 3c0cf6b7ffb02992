//! Consumers, deliveries, `basic.get`, and the consumer timeout.

use crate::{
    broker::{Content, Life, SimBroker},
    channel::Unacked,
    event::{Answer, CloseReason, Event},
    frame::ConsumeOptions,
    id::{ChannelId, ConsumerId, QueueId, RequestId},
    message::{Delivery, Stored},
    mishap::Mishap,
    queue::{Consumer, DeathReason, Queue},
    rules::ReturnKind,
    schedule::Timer,
    trace::What,
};

impl SimBroker {
    pub(crate) fn start_consumer(
        &mut self,
        channel: ChannelId,
        name: &str,
        id: ConsumerId,
        options: ConsumeOptions,
        request: RequestId,
    ) {
        let Some(queue) = self.usable(channel, name) else { return };
        let prefetch = self.channels[channel.index()].prefetch;
        let limit = if prefetch == 0 { usize::MAX } else { prefetch.into() };
        self.flush(channel, queue);
        match &mut self.queues[queue.index()].content {
            Content::Stream(_) if prefetch == 0 => {
                let text = "PRECONDITION_FAILED - consumer prefetch count is not set for a stream";
                return self.close_with(channel, CloseReason::new(406, text));
            }
            Content::Stream(stream) => stream.read(id, channel, options.offset, limit, self.now),
            Content::Queue(queue) => queue.subscribe(consumer(id, channel, limit, options.no_ack)),
            Content::Missing => unreachable!("it was found"),
        }
        self.channels[channel.index()].consumers.insert(id, queue);
        self.log(What::Consuming(channel, id, queue, prefetch));
        self.answer(channel, request, Answer::Consuming(id));
        self.serve(queue);
    }

    pub(crate) fn cancel_consumer(&mut self, channel: ChannelId, id: ConsumerId, request: RequestId) {
        if let Some(queue) = self.channels[channel.index()].consumers.remove(&id) {
            self.flush(channel, queue);
            self.stop_deliveries(queue, id);
            self.log(What::Cancelled(id, queue, "by its client"));
        }
        self.answer(channel, request, Answer::Cancelled(id));
    }

    /// The queue delivers nothing more to the consumer, who is not told.
    pub(crate) fn stop_deliveries(&mut self, queue: QueueId, id: ConsumerId) {
        match &mut self.queues[queue.index()].content {
            Content::Queue(queue) => queue.cancel(id),
            Content::Stream(stream) => stream.readers.retain(|it| it.id != id),
            Content::Missing => {}
        }
    }

    pub(crate) fn get_one(&mut self, channel: ChannelId, name: &str, request: RequestId) {
        let Some(id) = self.usable(channel, name) else { return };
        self.flush(channel, id);
        self.expire(id);
        let (now, consumer_id) = (self.now, self.new_consumer());
        let Some(is_empty) = self.queue(id).map(|queue| queue.len() == 0) else { return };
        self.log(What::Got(channel, id, !is_empty));
        if is_empty {
            return self.answer(channel, request, Answer::Got(None));
        }
        let tag = self.channels[channel.index()].next_tag();
        let Some(queue) = self.queue(id) else { return };
        queue.consumers.push(consumer(consumer_id, channel, 1, false));
        let stored = queue.check_out(queue.consumers.len() - 1, tag, now);
        queue.cancel(consumer_id);
        let delivery = stored.map(|stored| self.hand_out(id, consumer_id, channel, tag, stored, false));
        self.answer(channel, request, Answer::Got(delivery));
    }

    pub(crate) fn answer_existence(&mut self, channel: ChannelId, name: &str, request: RequestId) {
        let Some(queue) = self.usable(channel, name) else { return };
        let (ready, consumers) = match &self.queues[queue.index()].content {
            Content::Queue(queue) => (queue.len(), queue.consumers.iter().filter(|it| it.active).count()),
            Content::Stream(stream) => (stream.len(), stream.readers.len()),
            Content::Missing => unreachable!("it was found"),
        };
        self.answer(channel, request, Answer::Exists { ready: ready as u32, consumers: consumers as u32 });
    }

    /// The queue of this name. Closes the channel if it does not exist or belongs to another connection.
    pub(crate) fn usable(&mut self, channel: ChannelId, name: &str) -> Option<QueueId> {
        let connection = self.channels[channel.index()].connection;
        let found = self.names.get(name).copied();
        let found = found.filter(|id| !matches!(self.queues[id.index()].content, Content::Missing));
        let Some(id) = found else {
            self.close_with(channel, CloseReason::not_found("queue", name));
            return None;
        };
        let exclusive_to = self.queue(id).and_then(|queue| queue.exclusive_to);
        if exclusive_to.is_some_and(|it| it != connection) {
            let text = format!("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}'");
            self.close_with(channel, CloseReason::new(405, text));
            return None;
        }
        Some(id)
    }

    /// Removes what has expired at the head of the queue.
    fn expire(&mut self, id: QueueId) {
        let now = self.now;
        while let Some(stored) = self.queue(id).and_then(|queue| queue.take_expired(now)) {
            self.bury(id, stored, DeathReason::Expired);
        }
    }

    /// Delivers everything that has a consumer with credit.
    pub(crate) fn serve(&mut self, id: QueueId) {
        // While the broker goes down, consumers whose connections end a moment later get nothing.
        if matches!(self.life, Life::Down(_)) {
            return;
        }
        if matches!(self.queues[id.index()].content, Content::Stream(_)) {
            return self.serve_stream(id);
        }
        loop {
            self.expire(id);
            let now = self.now;
            let Some(queue) = self.queue(id) else { return };
            let Some(at) = queue.next_consumer() else { return };
            let (consumer_id, channel, no_ack) =
                (queue.consumers[at].id, queue.consumers[at].channel, queue.consumers[at].no_ack);
            let timer = now + queue.consumer_timeout;
            let needs_timer = !no_ack && !std::mem::replace(&mut queue.consumers[at].has_timer, true);
            let tag = self.channels[channel.index()].next_tag();
            let Some(stored) = self.queue(id).and_then(|queue| queue.check_out(at, tag, now)) else { return };
            if needs_timer {
                self.schedule.at(timer, Timer::Timeout(id, consumer_id));
            }
            let delivery = self.hand_out(id, consumer_id, channel, tag, stored, no_ack);
            self.send_on(channel, Event::Delivery { channel, delivery });
        }
    }

    /// Makes a checked out message a delivery of the channel.
    fn hand_out(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        channel: ChannelId,
        tag: u64,
        stored: Stored,
        no_ack: bool,
    ) -> Delivery {
        let serial = stored.serial;
        if !no_ack {
            self.channels[channel.index()].unacked.insert(tag, Unacked { queue, consumer, serial });
            self.counts(channel).delivered += 1;
        }
        let owner = self.owner_of(channel);
        self.ledger.delivered(serial, queue, owner);
        if no_ack {
            self.ledger.dropped(serial);
        }
        self.note(serial, What::Delivered(serial, channel, tag, queue));
        Delivery {
            consumer,
            tag,
            serial,
            redelivered: stored.acquired_count > 0,
            delivery_count: stored.delivery_count,
            acquired_count: self.rules.tells_acquired_count().then_some(stored.acquired_count),
            offset: None,
            message: stored.message,
        }
    }

    fn serve_stream(&mut self, id: QueueId) {
        while let Content::Stream(stream) = &mut self.queues[id.index()].content {
            let Some((consumer, channel, offset, record)) = stream.next() else { return };
            let state = &mut self.channels[channel.index()];
            let tag = state.next_tag();
            state.unacked.insert(tag, Unacked { queue: id, consumer, serial: record.serial });
            self.log(What::Delivered(record.serial, channel, tag, id));
            let delivery = Delivery {
                consumer,
                tag,
                serial: record.serial,
                redelivered: false,
                delivery_count: 0,
                acquired_count: None,
                offset: Some(offset),
                message: record.message,
            };
            self.send_on(channel, Event::Delivery { channel, delivery });
        }
    }

    /// Acts if a delivery of the consumer is as old as the consumer timeout; otherwise looks again when it would be.
    pub(crate) fn check_timeout(&mut self, id: QueueId, consumer_id: ConsumerId) {
        let (now, rules) = (self.now, self.rules);
        let Some(queue) = self.queue(id) else { return };
        let timeout = queue.consumer_timeout;
        let Some(consumer) = queue.consumer(consumer_id) else { return };
        let channel = consumer.channel;
        let oldest =
            consumer.held.values().min_by_key(|it| it.since).map(|it| (it.tag, it.stored.serial, it.since));
        let Some((tag, serial, since)) = oldest else {
            consumer.has_timer = false;
            return;
        };
        let is_settled = !self.channels[channel.index()].holds(tag, serial);
        if since + timeout > now {
            self.schedule.at(since + timeout, Timer::Timeout(id, consumer_id));
        } else if is_settled {
            // Its settlement is under way.
            self.schedule.at(now + timeout, Timer::Timeout(id, consumer_id));
        } else if rules.timeout_cancels() {
            self.happened(Mishap::ConsumerTimeout);
            for stored in self.queue(id).map(|queue| queue.time_out(consumer_id, now)).unwrap_or_default() {
                self.give_back(id, stored, ReturnKind::Timeout);
            }
            let consumer = self.queue(id).and_then(|queue| queue.consumer(consumer_id));
            if let Some(next) = consumer.and_then(|it| it.held.values().map(|held| held.since).min()) {
                self.schedule.at(next + timeout, Timer::Timeout(id, consumer_id));
            }
            // The channel keeps the consumer, so that each further timeout cancels it once more.
            if self.channels[channel.index()].consumers.contains_key(&consumer_id) {
                self.log(What::Cancelled(consumer_id, id, "the consumer timeout passed"));
                self.send_on(channel, Event::ConsumerCancelled { channel, consumer: consumer_id });
            } else {
                // The client has cancelled the consumer.
                self.close_with(channel, CloseReason::timed_out(channel, "-1"));
            }
            self.serve(id);
        } else {
            self.happened(Mishap::ConsumerTimeout);
            let timeout = timeout.as_millis().to_string();
            self.close_with(channel, CloseReason::timed_out(channel, &timeout));
        }
    }

    /// Puts a message back, or makes it a dead letter if it came back too often.
    pub(crate) fn give_back(&mut self, id: QueueId, stored: Stored, kind: ReturnKind) {
        let (serial, count) = (stored.serial, stored.delivery_count);
        let counted = count + u32::from(self.rules.counts(kind));
        let Some(result) = self.queue(id).map(|queue: &mut Queue| queue.give_back(stored, kind)) else {
            return;
        };
        self.ledger.returned(serial, id, kind);
        self.note(serial, What::Returned(serial, id, kind, counted));
        if let Err(over) = result {
            self.bury(id, over, DeathReason::DeliveryLimit);
        }
    }
}

fn consumer(id: ConsumerId, channel: ChannelId, prefetch: usize, no_ack: bool) -> Consumer {
    Consumer { id, channel, no_ack, prefetch, active: true, held: Default::default(), has_timer: false }
}
