//! A broker in memory without exchanges, faults and delays.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::ready,
    sync::{Mutex, MutexGuard},
};

use futures_util::{
    FutureExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use garenne_amqp::{BrokerError, Message, PublishError, declare::TopologyError, simulated::Outgoing};
use garenne_common::clock;
use garenne_protocol::{
    amqp::{AMQPValue, FieldTable},
    topology::{BrokerVersion, Topology},
};

use super::*;

type Delivered = Result<RawDelivery, ChannelError>;
type Deliveries = BoxStream<'static, Delivered>;
type Sender = mpsc::UnboundedSender<Delivered>;

#[derive(Clone)]
struct Stored {
    key: String,
    properties: BasicProperties,
    body: Vec<u8>,
    redelivered: bool,
}

/// A consumer of a queue.
struct Consumer {
    connection: usize,
    tag: String,
    queue: String,
    prefetch: usize,
    /// [`None`] once it is cancelled.
    sender: Option<Sender>,
    last_tag: u64,
    unacked: BTreeMap<u64, Stored>,
}

#[derive(Default)]
struct State {
    connections: usize,
    queues: BTreeMap<String, VecDeque<Stored>>,
    streams: BTreeMap<String, (Vec<Stored>, Vec<Sender>)>,
    /// With the connections that hold them.
    control_queues: BTreeSet<(usize, String)>,
    consumers: Vec<Consumer>,
    /// What workers sent, with the time.
    frames: Vec<String>,
}

#[derive(Clone, Default)]
pub(super) struct MemoryBroker(Arc<Mutex<State>>);

#[derive(Clone)]
pub(super) struct Connection {
    broker: MemoryBroker,
    pub(super) id: usize,
}

#[derive(Clone)]
pub(super) struct Channel {
    connection: Connection,
    prefetch: usize,
    /// The tag of its consumer. The tests give each consumer another one.
    tag: Arc<Mutex<String>>,
}

impl State {
    fn append(&mut self, stream: &str, mut record: Stored) {
        let (records, readers) = self.streams.entry(stream.to_owned()).or_default();
        let mut headers = FieldTable::default();
        let offset = i64::try_from(records.len()).unwrap();
        headers.insert("x-stream-offset".into(), AMQPValue::LongLongInt(offset));
        record.properties = record.properties.with_headers(headers);
        readers.retain(|reader| reader.send(Ok(delivery(0, &record))).is_ok());
        records.push(record);
    }

    fn publish(&mut self, message: Message) {
        self.frames.push(format!("{:?} {message:?}", clock::now()));
        let Message { target, properties, body } = message;
        let key = target.routing_key;
        let record = Stored { key: key.clone(), properties, body: body.into(), redelivered: false };
        match (target.exchange.as_str(), key.as_str()) {
            (_, key) if key.starts_with("life.") => self.append("garenne.lifecycle", record),
            ("", stream @ ("garenne.lifecycle" | "garenne.directives")) => self.append(stream, record),
            ("", queue) => self.queues.entry(queue.to_owned()).or_default().push_back(record),
            (exchange, key) => panic!("nothing is bound to {exchange} for {key}"),
        }
        self.deliver();
    }

    /// Delivers what is ready, to consumers in the order in which they came.
    fn deliver(&mut self) {
        for consumer in &mut self.consumers {
            let Some(sender) = &consumer.sender else { continue };
            let queue = self.queues.entry(consumer.queue.clone()).or_default();
            while consumer.unacked.len() < consumer.prefetch
                && let Some(message) = queue.pop_front()
            {
                consumer.last_tag += 1;
                let _ = sender.send(Ok(delivery(consumer.last_tag, &message)));
                consumer.unacked.insert(consumer.last_tag, message);
            }
        }
    }

    fn requeue(&mut self, queue: &str, messages: impl IntoIterator<Item = Stored>) {
        let queue = self.queues.entry(queue.to_owned()).or_default();
        queue.extend(messages.into_iter().map(|message| Stored { redelivered: true, ..message }));
    }
}

fn delivery(tag: u64, message: &Stored) -> RawDelivery {
    let Stored { key, properties, body, redelivered } = message.clone();
    let (exchange, routing_key) = ("garenne.tasks".into(), key.as_str().into());
    RawDelivery { tag, exchange, routing_key, redelivered, properties, body }
}

impl MemoryBroker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn connection(&self) -> Connection {
        let mut state = self.state();
        state.connections += 1;
        Connection { broker: self.clone(), id: state.connections }
    }

    /// How many parts of workers and tests hold the broker.
    pub(super) fn references(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(super) fn put(&self, queue: &str, key: &str, properties: BasicProperties, body: Vec<u8>) {
        let message = Stored { key: key.to_owned(), properties, body, redelivered: false };
        let mut state = self.state();
        state.queues.entry(queue.to_owned()).or_default().push_back(message);
        state.deliver();
    }

    pub(super) fn ready(&self, queue: &str) -> usize {
        self.state().queues.get(queue).map_or(0, VecDeque::len)
    }

    pub(super) fn unacked(&self) -> usize {
        self.state().consumers.iter().map(|consumer| consumer.unacked.len()).sum()
    }

    pub(super) fn frames(&self) -> Vec<String> {
        self.state().frames.clone()
    }

    /// Requeues what the connection has not acked, and deletes its control queue.
    pub(super) fn end(&self, connection: usize) {
        let mut state = self.state();
        let (ended, others) =
            std::mem::take(&mut state.consumers).into_iter().partition(|it| it.connection == connection);
        state.consumers = others;
        let ended: Vec<Consumer> = ended;
        ended.into_iter().for_each(|it| state.requeue(&it.queue, it.unacked.into_values()));
        state.control_queues.retain(|(owner, _)| *owner != connection);
        state.deliver();
    }
}

impl PublishBroker for MemoryBroker {
    fn connect(&self) -> BoxFuture<'_, Result<(), PublishError>> {
        ready(Ok(())).boxed()
    }

    fn publish(&self, outgoing: Outgoing) {
        if outgoing.claim() {
            self.state().publish(outgoing.message());
            outgoing.answer(Ok(()));
        }
    }

    fn announce(&self, _: Message) -> BoxFuture<'_, Result<(), PublishError>> {
        ready(Ok(())).boxed()
    }

    fn close(&self) {}
}

impl ConsumeBroker for Connection {
    type Channel = Channel;

    async fn version(&self) -> Result<BrokerVersion, BrokerError> {
        Ok("4.0.9".parse().expect("a version"))
    }

    async fn ensure(&self, _: Topology) -> Result<(), TopologyError> {
        Ok(())
    }

    async fn restore_topology(&self) -> Result<(), RestoreError> {
        Ok(())
    }

    async fn look_up(&self, queue: &str) -> Option<QueueState> {
        let state = self.broker.state();
        if state.control_queues.iter().any(|(_, name)| name == queue) {
            return Some(QueueState::Locked);
        }
        let found = state.queues.get(queue).map(|queue| QueueState::Ready(queue.len().try_into().unwrap()));
        Some(found.unwrap_or(QueueState::Missing))
    }

    async fn open(&self, prefetch: u16) -> Result<Channel, BrokerError> {
        Ok(Channel { connection: self.clone(), prefetch: prefetch.into(), tag: Arc::default() })
    }

    fn denied(&self, _: &str) -> BrokerError {
        unreachable!("everything is allowed")
    }

    fn for_foreign_messages(&self) -> Self {
        self.clone()
    }

    async fn close(&self) {
        self.broker.end(self.id);
    }
}

impl Channel {
    fn state(&self) -> MutexGuard<'_, State> {
        self.connection.broker.state()
    }
}

fn deliveries() -> (Sender, Deliveries) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    (sender, Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx))))
}

impl ConsumeChannel for Channel {
    type Deliveries = Deliveries;

    async fn consume(&self, queue: &str, tag: &str) -> Result<Deliveries, ChannelError> {
        let (sender, deliveries) = deliveries();
        tag.clone_into(&mut self.tag.lock().unwrap());
        let mut state = self.state();
        state.consumers.push(Consumer {
            connection: self.connection.id,
            tag: tag.to_owned(),
            queue: queue.to_owned(),
            prefetch: self.prefetch,
            sender: Some(sender),
            last_tag: 0,
            unacked: BTreeMap::new(),
        });
        state.deliver();
        Ok(deliveries)
    }

    async fn consume_control_queue(
        &self,
        queue: &str,
        _: &str,
        _: &[&str],
    ) -> Result<Deliveries, ChannelError> {
        self.state().control_queues.insert((self.connection.id, queue.to_owned()));
        Ok(Box::pin(stream::pending()))
    }

    /// No exchange is ever deleted, so the bindings exist.
    async fn bind_control_queue(&self, _: &str, _: &str, _: &[&str]) -> Result<(), ChannelError> {
        Ok(())
    }

    async fn consume_stream(&self, stream: &str, _: Option<i64>) -> Result<Deliveries, ChannelError> {
        let (sender, deliveries) = deliveries();
        let mut state = self.state();
        let (records, readers) = state.streams.entry(stream.to_owned()).or_default();
        records.iter().for_each(|record| drop(sender.send(Ok(delivery(0, record)))));
        readers.push(sender);
        Ok(deliveries)
    }

    async fn cancel(&self, tag: &str) -> Result<(), ChannelError> {
        let mut state = self.state();
        state.consumers.iter_mut().find(|it| it.tag == tag).expect("it consumes").sender = None;
        Ok(())
    }

    fn is_open(&self) -> bool {
        true
    }

    async fn close(&self) -> Result<(), ChannelError> {
        Ok(())
    }
}

impl SettleChannel for Channel {
    async fn send(&self, frame: &Frame) -> Result<(), ChannelError> {
        let tag = self.tag.lock().unwrap().clone();
        let mut state = self.state();
        // A record of a stream is not held.
        let State { consumers, frames, .. } = &mut *state;
        let Some(consumer) = consumers.iter_mut().find(|it| it.tag == tag) else { return Ok(()) };
        frames.push(format!("{:?} {tag} {frame:?}", clock::now()));
        let first = if frame.multiple { 0 } else { frame.tag };
        let settled: Vec<_> = consumer.unacked.extract_if(first..=frame.tag, |_, _| true).collect();
        assert!(!settled.is_empty(), "tag {} is not held", frame.tag);
        let queue = consumer.queue.clone();
        if frame.disposition == Disposition::Requeue {
            state.requeue(&queue, settled.into_iter().map(|(_, message)| message));
        }
        state.deliver();
        Ok(())
    }

    async fn flush_stash(&self, _: &str) -> Result<(), ChannelError> {
        Ok(())
    }
}
