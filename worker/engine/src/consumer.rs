//! Consumes task queues and settles deliveries, of any broker that implements `broker`; `amqp` is RabbitMQ.

mod ack_writer;
mod admission_backoff;
mod amqp;
pub(crate) mod broker;
mod cancellation;
mod channel_generation;
mod coalescer;
pub(crate) mod control_queue;
mod delivery;
mod intake;
mod ledger;
mod missing_queues;
mod orphan;
pub(crate) mod stream_reader;
mod subscriber;
mod subscription;
mod watchdog;

pub(crate) use amqp::ConsumerConnection;
pub(crate) use broker::{ConsumeBroker, QueueAdmin};
#[cfg(test)]
pub(crate) use cancellation::Cancellation;
pub(crate) use channel_generation::{ChannelGeneration, SettlementCounters};
pub(crate) use delivery::{Delivery, MessageHead};
pub(crate) use intake::{Intake, LaneIntake, LaneQuiet};
pub(crate) use missing_queues::MissingQueues;
pub(crate) use orphan::{OnOrphan, Orphan};
pub(crate) use subscriber::{Subscriber, ready_messages};
pub(crate) use subscription::Subscription;
