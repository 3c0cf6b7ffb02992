//! Why a request or line was refused, for HTTP and TCP.

use std::time::Duration;

use garenne_amqp::PublishError;
use garenne_common::config::Size;
use garenne_protocol::{
    sensor::BadRecord,
    task::{IdError, KindError},
};
use thiserror::Error;

/// Most characters of a sender's text that an answer quotes.
const MAX_QUOTE: usize = 64;

/// A sender's text for an answer: quoted, escaped, and cut after [`MAX_QUOTE`] characters.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Why a request or line was refused. None of its records is confirmed.
#[derive(Debug, Error)]
pub enum Refusal {
    /// An invalid record.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// A body that is not JSON.
    #[error("body: {0}")]
    NotJson(String),
    /// An invalid kind.
    #[error("{}", kind_error(.0))]
    Kind(#[from] KindError),
    /// A kind that no lane takes. Its tasks would stay in the queue `garenne.unroutable`.
    #[error("no lane takes kind {}; bindings are {bindings}", quoted(kind))]
    NoLane {
        /// The kind.
        kind: String,
        /// The bindings of all lanes.
        bindings: String,
    },
    /// An invalid header or query parameter.
    #[error("{field}: {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// The problem and what is allowed.
        problem: String,
    },
    /// An invalid task id.
    #[error("{field}: {error}")]
    Id {
        /// The header that contains it.
        field: &'static str,
        /// The problem.
        error: IdError,
    },
    /// Too many bytes.
    #[error("{what} is larger than {limit}")]
    TooLarge {
        /// `body`, `line`, `decompressed body`, or the memory of the request.
        what: &'static str,
        /// The limit.
        limit: Size,
    },
    /// An unsupported content encoding.
    #[error("content-encoding {} is not supported, expected gzip or identity", quoted(.0))]
    Encoding(String),
    /// An unsupported content type.
    #[error("content-type {} is not supported, expected application/json or application/senml+json", quoted(.0))]
    Media(String),
    /// Authentication failed. The text is the reason.
    #[error("not authenticated: {0}")]
    Unauthorized(&'static str),
    /// A reading of another device than the certificate's.
    #[error("record {record}: device: {} is not the certificate's device {subject:?}", quoted(device))]
    ForeignDevice {
        /// The index of the record.
        record: usize,
        /// The device of the reading.
        device: String,
        /// The certificate's subject.
        subject: String,
    },
    /// A task of a sender with a certificate, which may send only readings.
    #[error("device {subject:?} may send readings, not tasks of kind {}", quoted(kind))]
    DeviceTask {
        /// The task's kind.
        kind: String,
        /// The certificate's subject.
        subject: String,
    },
    /// The sender's rate limit.
    #[error("rate limit of {per_second} records per second exceeded")]
    RateLimited {
        /// The limit.
        per_second: u32,
        /// When the request may be repeated.
        retry_after: Duration,
    },
    /// The sender was too slow.
    #[error("{what} did not arrive within {limit:?}")]
    Timeout {
        /// `body` or `line`.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The broker refused the tasks or is unavailable. Some of them may be stored all the same; sending all of them
    /// again under the same ids has no second effect.
    #[error("{error}")]
    Broker {
        /// The error.
        error: PublishError,
        /// When the request may be repeated.
        retry_after: Duration,
    },
    /// The gateway is overloaded.
    #[error("{why}")]
    Overloaded {
        /// The resource that is used up, and its limit.
        why: String,
        /// When the request may be repeated.
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
    /// The code for programs, in problem documents and in `error` lines of the TCP protocol.
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

    /// When the same request may succeed; `None` if it never will.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Broker { error: PublishError::TooLarge { .. }, .. } => None,
            Self::RateLimited { retry_after, .. }
            | Self::Broker { retry_after, .. }
            | Self::Overloaded { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The index of the invalid record and the name of the invalid field, if known.
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
