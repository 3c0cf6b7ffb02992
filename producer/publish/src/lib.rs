//! Sending tasks: to the broker with publisher confirms, in groups, or into a spool until the broker confirms them.
//!
//! The gateway, the MQTT bridge and the commands that publish share it. Tasks pass these steps, of which only the last
//! hands a message to the broker:
//!
//! ```text
//! SpoolingSender::send   spool, or send and spool what is not confirmed in time
//! BrokerSender::send     wait for the topology, begin a span
//! GroupCommit::group     put the tasks of several calls into one message
//! Publisher::publish     one message, confirmed
//! ```
//!
//! [`SpoolDrain`] sends what the spool has with a [`BrokerSender`] of its own, or forwards it to a central gateway.
//! [`Uplink`] opens and closes all of it.

mod broker;
mod broker_sender;
mod connector;
mod drain;
pub mod group_commit;
mod messages;
mod routes;
mod service;
mod spool;
mod spooling;
mod task_sender;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unconfirmed;
mod uplink;

pub use broker::BrokerSettings;
pub use broker_sender::{BrokerSender, LetterOf};
pub use drain::{Answered, DrainError, Forward, ForwardError, SpoolDrain};
pub use group_commit::{GroupCommit, GroupCommitConfig};
pub use messages::{BrokerMessages, GroupSender};
pub use routes::{KindRefused, READING_KIND, Routes};
pub use service::{Service, State, Status};
pub use spool::{SpoolSettings, export_metrics};
pub use spooling::{Durability, NotAccepted, SpoolingSender};
pub use task_sender::{TaskSender, shutting_down};
pub use uplink::{Sending, SpoolCounts, Uplink};
