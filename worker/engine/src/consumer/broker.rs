//! What the consumers of a worker need of a broker, as traits: RabbitMQ implements them in `amqp`, and simulations
//! implement them too.

#![cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "public for simulations"))]

use futures_util::{FutureExt, Stream, future::BoxFuture};
use garenne_amqp::{BrokerError, declare::TopologyError};
use garenne_protocol::{
    amqp::{BasicProperties, ShortString},
    settlement::Settlement,
    topology::{BrokerVersion, Topology},
};
use thiserror::Error;

/// A broker that a worker consumes from, over one connection that is opened again when it ended. Clones share the
/// connection.
pub trait ConsumeBroker: Clone + Send + Sync + 'static {
    /// A channel of the connection.
    type Channel: ConsumeChannel;

    /// The broker's version, after the connection is opened.
    fn version(&self) -> impl Future<Output = Result<BrokerVersion, BrokerError>> + Send;

    /// Declares the topology, and remembers it for [`restore_topology`](Self::restore_topology).
    fn ensure(&self, topology: Topology) -> impl Future<Output = Result<(), TopologyError>> + Send;

    /// Declares the parts of the topology that are missing, as far as the user's permissions allow.
    fn restore_topology(&self) -> impl Future<Output = Result<(), RestoreError>> + Send;

    /// Looks up a queue. [`None`] if the broker does not answer, or refuses for another reason than those of
    /// [`QueueState`].
    fn look_up(&self, queue: &str) -> impl Future<Output = Option<QueueState>> + Send;

    /// Opens a channel with this prefetch, on the connection or a new one.
    fn open(&self, prefetch: u16) -> impl Future<Output = Result<Self::Channel, BrokerError>> + Send;

    /// The error of an operation that the broker denied with this reply text.
    fn denied(&self, detail: &str) -> BrokerError;

    /// Another connection to the same broker, for foreign messages.
    #[must_use]
    fn for_foreign_messages(&self) -> Self;

    /// Closes the connection. All channels should be closed before.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// A channel with a prefetch. Clones are the same channel; it lives as long as one of them.
pub trait ConsumeChannel: SettleChannel + Clone {
    /// The deliveries of one consumer, in order. It ends when the consumer is cancelled, by either side, after the
    /// deliveries that were sent before; the error of a channel that ended comes last.
    type Deliveries: Stream<Item = Result<RawDelivery, ChannelError>> + Send + Unpin;

    /// Consumes a queue. `tag` names the consumer.
    fn consume(
        &self,
        queue: &str,
        tag: &str,
    ) -> impl Future<Output = Result<Self::Deliveries, ChannelError>> + Send;

    /// Declares an exclusive queue that is deleted with the connection, binds it to `exchange` with each of `keys`, and
    /// consumes it without acks.
    fn consume_control_queue(
        &self,
        queue: &str,
        exchange: &str,
        keys: &[&str],
    ) -> impl Future<Output = Result<Self::Deliveries, ChannelError>> + Send;

    /// Binds a control queue again. Nothing changes for bindings that exist.
    fn bind_control_queue(
        &self,
        queue: &str,
        exchange: &str,
        keys: &[&str],
    ) -> impl Future<Output = Result<(), ChannelError>> + Send;

    /// Consumes a stream from this offset, or from its first record. The header `x-stream-offset` of a record is its
    /// offset. An ack returns credit.
    fn consume_stream(
        &self,
        stream: &str,
        from: Option<i64>,
    ) -> impl Future<Output = Result<Self::Deliveries, ChannelError>> + Send;

    /// Cancels a consumer. After the broker's answer it sends no more deliveries.
    fn cancel(&self, tag: &str) -> impl Future<Output = Result<(), ChannelError>> + Send;

    /// Whether the channel and its connection are open, as far as is known.
    fn is_open(&self) -> bool;

    /// Closes the channel. After the broker's answer all settlements that were sent before are applied, except those in
    /// its stash.
    fn close(&self) -> impl Future<Output = Result<(), ChannelError>> + Send;
}

/// The operations of a channel that settle deliveries.
pub trait SettleChannel: Send + Sync + 'static {
    /// Queues a frame when first polled, and completes when the frame is written to the socket.
    fn send(&self, frame: &Frame) -> impl Future<Output = Result<(), ChannelError>> + Send;

    /// Makes the broker's channel pass its stash on to `queue`, and completes when the queue has applied it.
    fn flush_stash(&self, queue: &str) -> impl Future<Output = Result<(), ChannelError>> + Send;
}

/// How the broker treats a settled delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Removes it from the queue.
    Ack,
    /// Puts it back into the queue.
    Requeue,
}

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the broker does with them.
    pub disposition: Disposition,
    /// The delivery, or the last one.
    pub tag: u64,
    /// Whether the frame covers all outstanding tags up to and including `tag`.
    pub multiple: bool,
    /// How many deliveries it settles with each settlement, in the order of [`Settlement::ALL`].
    pub(crate) settlements: [u32; Settlement::ALL.len()],
}

impl Frame {
    /// The ack of one delivery.
    pub(crate) fn ack(tag: u64) -> Self {
        Self::single(tag, Disposition::Ack, Settlement::Acked)
    }

    /// The frame that settles one delivery.
    pub(super) fn single(tag: u64, disposition: Disposition, settlement: Settlement) -> Self {
        let mut settlements = [0; Settlement::ALL.len()];
        settlements[settlement as usize] = 1;
        Self { disposition, tag, multiple: false, settlements }
    }
}

/// A message as the broker delivered it.
#[derive(Clone, Debug)]
pub struct RawDelivery {
    /// The delivery tag. The tags of a channel are consecutive, from 1.
    pub tag: u64,
    /// The exchange that it was published to; empty for the default one.
    pub exchange: ShortString,
    /// The routing key.
    pub routing_key: ShortString,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// The properties.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
}

/// Why an operation of a channel failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct ChannelError {
    /// The broker's reply code and text, if it sent them.
    pub reply: Option<(u16, String)>,
    /// The whole error, for logs.
    pub text: String,
}

/// A queue that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// It exists and has this number of ready messages.
    Ready(u32),
    /// It exists, and another connection holds it.
    Locked,
    /// It does not exist.
    Missing,
}

/// Why the topology could not be declared again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The broker cannot be reached, or the topology is not known yet.
    #[error("the broker cannot be reached to declare it")]
    Unavailable,
    /// The broker refused a declaration.
    #[error("{0}")]
    Refused(String),
}

/// Creates and looks up queues, for the parts of a worker that are not generic.
pub(crate) trait QueueAdmin: Send + Sync {
    /// As [`ConsumeBroker::restore_topology`].
    fn restore_topology(&self) -> BoxFuture<'_, Result<(), RestoreError>>;

    /// Whether a queue exists. `None` if the broker does not answer.
    fn queue_exists<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Option<bool>>;
}

impl<B: ConsumeBroker> QueueAdmin for B {
    fn restore_topology(&self) -> BoxFuture<'_, Result<(), RestoreError>> {
        ConsumeBroker::restore_topology(self).boxed()
    }

    fn queue_exists<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Option<bool>> {
        async { Some(self.look_up(queue).await? != QueueState::Missing) }.boxed()
    }
}
