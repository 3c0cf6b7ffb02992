//! Consumes task queues and settles deliveries. The engine uses lapin only in this module.

mod ack_writer;
mod admission_backoff;
mod channel_generation;
mod coalescer;
mod connection;
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

pub(crate) use channel_generation::{ChannelGeneration, SettlementCounters};
pub(crate) use connection::{ConsumerConnection, QueueAdmin};
pub(crate) use delivery::Delivery;
pub(crate) use intake::{Intake, LaneIntake, LaneQuiet};
pub(crate) use missing_queues::MissingQueues;
pub(crate) use orphan::{OnOrphan, Orphan};
pub(crate) use subscriber::Subscriber;
pub(crate) use subscription::Subscription;
