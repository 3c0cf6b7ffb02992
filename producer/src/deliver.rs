//! Where replayed and simulated readings go, and what happens when it does not take them.

use futures_util::future::BoxFuture;
use garenne_common::exit::Exit;
use garenne_protocol::{sensor::Reading, task::TaskId};
use std::time::Duration;

mod broker;
mod courier;
mod http;
mod receipts;
mod target;
mod tcp;

pub use broker::BrokerDestination;
pub(crate) use broker::setback;
pub use courier::{Carrier, Courier, CourierConfig, Tally};
pub use http::HttpDestination;
pub use receipts::Receipts;
pub use target::Target;
pub use tcp::TcpDestination;

/// Takes batches of readings. The same readings may be delivered again: their ids follow from
/// themselves, so that a repetition has no second effect.
pub trait Destination: Send + Sync + 'static {
    /// Delivers the batch: an id per reading, in order, once all of them are safe.
    fn deliver<'a>(&'a self, batch: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, Setback>>;
}

/// Why a batch was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setback {
    /// It may be taken later.
    Again {
        /// What happened.
        why: String,
        /// How long the other side asks to wait.
        after: Option<Duration>,
    },
    /// One reading will never be taken; the others may.
    Reading {
        /// Its place in the batch.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
    /// No reading will ever be taken.
    Never {
        /// What is wrong.
        why: String,
        /// How the process should end.
        exit: Exit,
    },
}
