//! Consumes task queues and settles deliveries. The engine uses lapin only in this module.

mod ack_writer;
mod admission;
mod channel_generation;
mod coalescer;
mod connection;
pub(crate) mod control_queue;
mod counters;
mod delivery;
mod ledger;
mod missing;
mod reply;
pub(crate) mod stream_reader;
mod subscribe;
mod watchdog;

pub(crate) use channel_generation::ChannelGeneration;
pub(crate) use connection::ConsumerConnection;
pub(crate) use counters::SettlementCounters;
pub(crate) use delivery::Delivery;
pub(crate) use missing::MissingQueues;
pub(crate) use subscribe::{Intake, Subscriber, Subscription};
