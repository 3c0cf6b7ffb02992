//! Destinations of replayed and simulated readings, and their delivery with retries.

mod broker;
mod delivery_counts;
mod delivery_queue;
mod endpoint;
mod http;
mod receipt_file;
mod retrying_sender;
mod tcp;

use std::time::Duration;

use futures_util::future::BoxFuture;
use garenne_common::exit::Exit;
use garenne_protocol::{sensor::Reading, task::TaskId};

pub use broker::BrokerDestination;
pub(crate) use broker::send_error;
pub use delivery_counts::DeliveryCounts;
pub use delivery_queue::{DeliveryConfig, DeliveryQueue};
pub use endpoint::Endpoint;
pub use http::HttpDestination;
pub use receipt_file::ReceiptFile;
pub use retrying_sender::RetryingSender;
pub use tcp::TcpDestination;

/// Receives readings. The same readings may be sent again: their ids are derived from them, so that a repetition has no
/// second effect.
pub trait Destination: Send + Sync + 'static {
    /// Sends the readings and returns one task id per reading, in order, after all of them are confirmed.
    ///
    /// # Errors
    /// At least one reading is not confirmed.
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>>;
}

/// Why readings were not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Sending the same readings later may succeed.
    Retry {
        /// The reason.
        reason: String,
        /// The wait that the destination asks for.
        retry_after: Option<Duration>,
    },
    /// One reading is invalid; the others may be sent again without it.
    InvalidReading {
        /// Its index.
        index: usize,
        /// The problem.
        reason: String,
    },
    /// No reading will be accepted.
    Fatal {
        /// The reason.
        reason: String,
        /// The exit code of the process.
        exit: Exit,
    },
}
