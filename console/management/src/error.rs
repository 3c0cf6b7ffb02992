//! Errors of the management API.

use garenne_common::exit::{Exit, HasExit};
use reqwest::StatusCode;
use thiserror::Error;

/// A request to the management API that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ManagementError {
    /// The URL cannot be used.
    #[error("invalid management_url {url}: {detail}")]
    Url {
        /// The URL without its password.
        url: String,
        /// The problem.
        detail: String,
    },
    /// No answer.
    #[error(
        "no management API at {url}: {detail}; is the plugin rabbitmq_management enabled? (--management-url)"
    )]
    Unreachable {
        /// The address without user and password.
        url: String,
        /// The error of the network.
        detail: String,
    },
    /// Wrong user or password, or a missing permission.
    #[error(
        "the management API at {url} denied access to user {user:?} ({status}): the user needs the tag monitoring or management and a permission on the virtual host"
    )]
    Denied {
        /// The address without user and password.
        url: String,
        /// The user.
        user: String,
        /// The HTTP status.
        status: StatusCode,
    },
    /// The object does not exist.
    #[error("{request}: not found")]
    NotFound {
        /// Method and URL.
        request: String,
    },
    /// Any other status than success.
    #[error("{request}: {status}: {reason}")]
    Status {
        /// Method and URL.
        request: String,
        /// The HTTP status.
        status: StatusCode,
        /// The broker's reason.
        reason: String,
    },
    /// An answer that cannot be parsed.
    #[error("{request}: unexpected answer: {detail}")]
    Answer {
        /// Method and URL.
        request: String,
        /// The parse error.
        detail: String,
    },
}

impl HasExit for ManagementError {
    fn exit(&self) -> Exit {
        match self {
            Self::Url { .. } => Exit::Config,
            Self::Unreachable { .. } => Exit::BrokerUnavailable,
            Self::Denied { .. } => Exit::Denied,
            Self::NotFound { .. } | Self::Status { .. } | Self::Answer { .. } => Exit::Failed,
        }
    }
}
