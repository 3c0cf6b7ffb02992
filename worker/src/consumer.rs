//! The only AMQP in this crate: deliveries come in, settlements go out.

mod admission;
mod company;
mod delivery;
mod epoch;
pub(crate) mod journal;
mod ledger;
mod link;
mod meter;
mod missing;
pub(crate) mod presence;
mod reply;
mod settle;
mod subscribe;
mod watchdog;

pub(crate) use delivery::Delivery;
pub(crate) use epoch::Epoch;
pub(crate) use link::Link;
pub(crate) use meter::Meter;
pub(crate) use missing::MissingQueues;
pub(crate) use subscribe::{Intake, Subscriber, Subscription};
