//! Destinations of replayed and simulated readings, and their delivery with retries.

mod broker;
mod delivery;
mod endpoint;
mod http;
mod line_connection;
mod lines;
mod mqtt;
mod token;

use std::time::Duration;

use futures_util::future::BoxFuture;
use garenne_common::{
    client_tls::CertificateError,
    exit::{Exit, Failure},
};
use garenne_protocol::{sensor::Reading, task::TaskId};

pub(crate) use broker::{BrokerConnection, not_accepted, send_error};
pub(crate) use delivery::{DeliveryCounts, DeliveryQueue, RetryingSender};
pub(crate) use endpoint::Endpoint;

/// Receives readings. The same readings may be sent again: their ids are derived from them, so that a repetition has no
/// second effect.
pub(crate) trait Destination: Send + Sync + 'static {
    /// Sends the readings and returns one task id per reading, in order, after all of them are confirmed.
    fn send<'a>(&'a self, readings: &'a [Reading]) -> BoxFuture<'a, Result<Vec<TaskId>, SendError>>;
}

/// The failure of a flag whose file cannot be used.
fn unusable(error: &CertificateError) -> Failure {
    Failure::new(Exit::Config, format_args!("--{error}"))
}

/// Why readings were not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// Sending the same readings later may succeed.
    Retry {
        reason: String,
        /// The wait that the destination asks for.
        retry_after: Option<Duration>,
    },
    /// One reading is invalid; the others may be sent again without it.
    InvalidReading {
        /// The index of the reading.
        index: usize,
        reason: String,
    },
    /// No reading will be accepted.
    Fatal(Failure),
}

impl SendError {
    /// The same, of readings behind so many others.
    fn behind(self, others: usize) -> Self {
        match self {
            Self::InvalidReading { index, reason } => Self::InvalidReading { index: index + others, reason },
            other => other,
        }
    }

    /// No reading will be accepted; the process fails.
    fn fatal(reason: String) -> Self {
        Self::Fatal(Failure::new(Exit::Failed, reason))
    }
}
