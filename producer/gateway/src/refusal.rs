//! Why a request or a line was not taken; the same reasons over HTTP and TCP.

use std::time::Duration;

use garenne_amqp::PublishError;
use garenne_common::config::Size;
use garenne_protocol::{
    sensor::BadRecord,
    task::{IdError, KindError},
};
use thiserror::Error;

/// The most characters of a sender's text that an answer quotes.
const LONGEST_QUOTE: usize = 64;

/// A sender's text as an answer quotes it: escaped, and at most [`LONGEST_QUOTE`] characters of it.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Nothing of what was sent is promised.
#[derive(Debug, Error)]
pub enum Refusal {
    /// A record that is no reading.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A body that is no JSON.
    #[error("body: {0}")]
    NotJson(String),
    /// A kind that is none.
    #[error("{}", kind_error(.0))]
    Kind(#[from] KindError),
    /// A kind that would lie in `garenne.unroutable` for ever.
    #[error("kind {} is taken by no lane; bindings are {bindings}", quoted(kind))]
    NoLane {
        /// The kind.
        kind: String,
        /// All bindings, for a human.
        bindings: String,
    },
    /// A header or query field that cannot be used.
    #[error("{field}: {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A task id that cannot be used.
    #[error("{field}: {error}")]
    Id {
        /// Where it was given.
        field: &'static str,
        /// What is wrong with it.
        error: IdError,
    },
    /// More bytes than allowed.
    #[error("{what} is over {limit}")]
    TooLarge {
        /// `body`, `line`, `decompressed body`, or the memory that a request needs.
        what: &'static str,
        /// The limit.
        limit: Size,
    },
    /// A content encoding that is not understood.
    #[error("content-encoding {} is not understood; gzip and identity are", quoted(.0))]
    Encoding(String),
    /// A content type that no task has.
    #[error("content-type {} carries no task; application/json and application/senml+json do", quoted(.0))]
    Media(String),
    /// No token, or one that is not known.
    #[error("a token is needed: {0}")]
    Unauthorized(&'static str),
    /// A reading of a device that the sender's certificate does not speak for.
    #[error("record {record}: device: {} is not the certificate's own {subject:?}", quoted(device))]
    ForeignDevice {
        /// Its place.
        record: usize,
        /// The device of the reading.
        device: String,
        /// The certificate's subject.
        subject: String,
    },
    /// A task of a sender that may only send its own readings.
    #[error("device {subject:?} may send readings, not tasks of kind {}", quoted(kind))]
    DeviceTask {
        /// The task's kind.
        kind: String,
        /// The certificate's subject.
        subject: String,
    },
    /// More than this sender may send.
    #[error("over the rate limit of {per_second} records a second")]
    RateLimited {
        /// The limit.
        per_second: u32,
        /// When it may go on.
        retry_after: Duration,
    },
    /// The sender took too long.
    #[error("{what} did not arrive within {limit:?}")]
    Timeout {
        /// `body` or `line`.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The broker pushes back, or is away. Nothing else may be concluded from it: a part may be
    /// stored, and sending it all again under the same ids is safe.
    #[error("{error}")]
    Broker {
        /// What happened.
        error: PublishError,
        /// When to try again.
        retry_after: Duration,
    },
    /// The gateway has no room for it now.
    #[error("{why}")]
    Overloaded {
        /// What is used up, and its limit.
        why: String,
        /// When to try again.
        retry_after: Duration,
    },
}

fn kind_error(error: &KindError) -> String {
    match error {
        KindError::Character(kind) => {
            format!("kind {} may hold only letters, digits, '.', '_' and '-'", quoted(kind))
        }
        other => other.to_string(),
    }
}

impl Refusal {
    /// One word for programs: the code of a problem document and of a TCP `error` line.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Record(error) => error.code.code(),
            Self::NotJson(_) => "malformed",
            Self::Kind(_) => "bad-kind",
            Self::NoLane { .. } => "no-lane",
            Self::Field { .. } | Self::Id { .. } => "bad-field",
            Self::TooLarge { .. } => "too-large",
            Self::Encoding(_) => "unsupported-encoding",
            Self::Media(_) => "unsupported-media-type",
            Self::Unauthorized(_) => "unauthorized",
            Self::ForeignDevice { .. } => "foreign-device",
            Self::DeviceTask { .. } => "forbidden",
            Self::Timeout { .. } => "timeout",
            Self::RateLimited { .. } => "rate-limited",
            Self::Broker {
                error: PublishError::Busy { .. } | PublishError::Refused { .. } | PublishError::Blocked,
                ..
            } => "busy",
            Self::Broker { error: PublishError::TooLarge { .. }, .. } => "too-large",
            Self::Broker { .. } => "unavailable",
            Self::Overloaded { .. } => "busy",
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Record(error) => error.code.http_status(),
            Self::NotJson(_) | Self::Field { .. } | Self::Id { .. } => 400,
            Self::Kind(_) | Self::NoLane { .. } => 422,
            Self::TooLarge { .. } | Self::Broker { error: PublishError::TooLarge { .. }, .. } => 413,
            Self::Encoding(_) | Self::Media(_) => 415,
            Self::Unauthorized(_) => 401,
            Self::ForeignDevice { .. } | Self::DeviceTask { .. } => 403,
            Self::Timeout { .. } => 408,
            Self::RateLimited { .. } => 429,
            Self::Broker { .. } | Self::Overloaded { .. } => 503,
        }
    }

    /// When the same request may succeed, where waiting helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Broker { error: PublishError::TooLarge { .. }, .. } => None,
            Self::RateLimited { retry_after, .. }
            | Self::Broker { retry_after, .. }
            | Self::Overloaded { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The record and the field at fault, where there are any.
    pub fn place(&self) -> (Option<usize>, Option<&str>) {
        match self {
            Self::Record(error) => (Some(error.index), Some(&error.field)),
            Self::Kind(_) | Self::NoLane { .. } => (None, Some("kind")),
            Self::Field { field, .. } | Self::Id { field, .. } => (None, Some(field)),
            Self::ForeignDevice { record, .. } => (Some(*record), Some("device")),
            Self::NotJson(_) => (None, Some("body")),
            _ => (None, None),
        }
    }
}
