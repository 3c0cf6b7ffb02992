//! Why a request or line was refused.

use std::{borrow::Cow, fmt::Display, num::NonZeroU32, time::Duration};

use axum::http::StatusCode;
use garenne_amqp::PublishError;
use garenne_common::config::Size;
use garenne_map::Unmapped;
use garenne_protocol::{
    list::ListError,
    quoted,
    sensor::{BadRecord, Fault},
    task::IdError,
};
use garenne_publish::KindRefused;
use garenne_spool::SpoolError;
use thiserror::Error;

/// Most characters of a parser's error that an answer has.
const MAX_PARSER_ERROR: usize = 200;

/// Most refused records that a refusal of a whole request names.
const MAX_NAMED: usize = 100;

/// A parser's error on one line and with a limited length, because it quotes the input.
pub(super) fn short(error: &impl Display) -> String {
    let text = error.to_string();
    let characters = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    characters.take(MAX_PARSER_ERROR).collect()
}

/// Why a request or line was refused. None of its records is confirmed.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The code for programs, in problem documents and in `error` lines of the TCP protocol.
    pub code: &'static str,
    /// The reason for people.
    pub message: String,
    /// When the same request may succeed; `None` if it never will.
    pub retry_after: Option<Duration>,
    /// The index of the invalid record, if known.
    pub record: Option<usize>,
    /// The number of the invalid line of InfluxDB's protocol, from 1.
    pub line: Option<NonZeroU32>,
    /// The name of the invalid field, if known.
    pub field: Option<Cow<'static, str>>,
    /// The first records or lines that are refused, if there are several.
    pub refused: Box<[Refusal]>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
            record: None,
            line: None,
            field: None,
            refused: Box::default(),
        }
    }

    fn invalid(fault: Fault, message: String) -> Self {
        let status = match fault {
            Fault::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Fault::TooManyRecords => StatusCode::PAYLOAD_TOO_LARGE,
            // A body that is not JSON.
            Fault::Malformed => StatusCode::BAD_REQUEST,
            // JSON that is not a valid reading.
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, fault.code(), message)
    }

    fn at(self, field: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// A body that cannot be read.
    pub(super) fn malformed_body(problem: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", format!("body: {problem}")).at("body")
    }

    /// What the router refuses: an unknown route, a wrong method, a query or path that cannot be read.
    pub(super) fn of_router(status: StatusCode, detail: &str) -> Self {
        let code = match status {
            StatusCode::NOT_FOUND => "no-route",
            StatusCode::METHOD_NOT_ALLOWED => "wrong-method",
            _ => "bad-request",
        };
        Self::new(status, code, short(&detail))
    }

    /// An invalid header or query parameter.
    pub(super) fn field(field: &'static str, problem: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-field", format!("{field}: {problem}")).at(field)
    }

    /// A name that no map has.
    pub(super) fn no_map(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-map", format!("no map has the name {}", quoted(name))).at("name")
    }

    /// A payload that a map makes no readings of.
    pub(super) fn unmapped(why: Unmapped) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unmapped", why.to_string()).at("body")
    }

    /// Too many bytes of `what`: `body`, `line`, `decompressed body`, or the memory of the request.
    pub(super) fn too_large(what: &str, limit: Size) -> Self {
        let message = format!("{what} is larger than {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
    }

    /// An unsupported content encoding.
    pub(super) fn encoding(given: &str) -> Self {
        let message =
            format!("content-encoding {} is not supported, expected gzip, zstd or identity", quoted(given));
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-encoding", message)
    }

    /// An unsupported content type. `application/json` is always one of those that are expected.
    pub(super) fn media_type(given: &str, other: &str) -> Self {
        let message =
            format!("content-type {} is not supported, expected application/json or {other}", quoted(given));
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", message)
    }

    /// A request that announces no CloudEvent.
    pub(super) fn no_event(media: &str) -> Self {
        let message = format!(
            "no CloudEvent: content-type {} is neither application/cloudevents+json nor \
             application/cloudevents-batch+json, and there is no header ce-specversion",
            quoted(media)
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", message)
    }

    /// More events, tasks or data points in a request than are allowed.
    pub(super) fn too_many(what: &str, most: usize) -> Self {
        let message = format!("body: more than {most} {what}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-many-records", message).at("body")
    }

    /// A body that is no list of at most `most` objects, or one of whose objects was refused.
    pub(super) fn bad_list(error: ListError<Self>, what: &str, most: usize) -> Self {
        match error {
            ListError::Json(error) => Self::malformed_body(error),
            ListError::TooMany => Self::too_many(what, most),
            ListError::Refused(refusal) => refusal,
        }
    }

    /// The same, of the record at this index. If it names a record already, that is a reading in the payload of this one.
    pub(super) fn of_record(self, record: usize) -> Self {
        let reading = self.record.and_then(|reading| {
            let problem = self.message.strip_prefix(&format!("record {reading}: "))?;
            Some(format!("reading {reading}: {problem}"))
        });
        let problem = reading.as_ref().unwrap_or(&self.message);
        Self { message: format!("record {record}: {problem}"), record: Some(record), ..self }
    }

    /// A request of which nothing remains, for the reason of its first record.
    pub(super) fn nothing_remains(mut refused: Vec<Self>) -> Self {
        match refused.len() {
            0 | 1 => refused.pop().unwrap_or_else(|| Self::malformed_body("no record")),
            _ => {
                refused.truncate(MAX_NAMED);
                let first = refused[0].clone();
                Self { refused: refused.into_boxed_slice(), ..first }
            }
        }
    }

    /// The same, of the line with this number.
    pub(super) fn of_line(&self, number: u64) -> Self {
        let message = format!("line {number}: {}", self.message);
        let line = NonZeroU32::new(u32::try_from(number).unwrap_or(u32::MAX));
        Self { message, line, refused: Box::default(), ..self.clone() }
    }

    /// Points of OpenTelemetry that cannot all be stored, for a sender that wants all or none.
    pub(super) fn rejected_points(message: String) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "rejected-points", message).at("body")
    }

    /// An invalid line in InfluxDB's protocol.
    pub(super) fn bad_line(number: u64, BadRecord { field, message, code, .. }: BadRecord) -> Self {
        Self::invalid(code, format!("{field}: {message}")).at(field).of_line(number)
    }

    /// An unknown unit of timestamps.
    pub(super) fn precision(given: &str) -> Self {
        Self::field("precision", format!("{} is unknown, expected ns, us, ms, s, m or h", quoted(given)))
    }

    /// A line whose end was not sent. Its values may be cut off.
    pub(super) fn unfinished_line() -> Self {
        let message = "line: the connection ended before the line did";
        Self::new(StatusCode::BAD_REQUEST, "malformed", message).at("line")
    }

    /// The entry of an authenticated sender has expired.
    pub(super) fn expired() -> Self {
        Self::unauthorized("the sender's entry has expired")
    }

    /// Authentication failed.
    pub(super) fn unauthorized(why: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", format!("not authenticated: {why}"))
    }

    /// A record of a device that its sender may not send records of.
    pub(super) fn foreign_device(device: &str, sender: &str) -> Self {
        let message = format!("device: sender {sender:?} may not send {}", quoted(device));
        Self::new(StatusCode::FORBIDDEN, "foreign-device", message).at("device")
    }

    /// A payload that may name devices where they are not looked for.
    pub(super) fn hidden_device(sender: &str) -> Self {
        let message =
            format!("body: sender {sender:?} may send some devices only, so the payload must be an object");
        Self::new(StatusCode::FORBIDDEN, "foreign-device", message).at("body")
    }

    /// A kind that its sender may not send.
    pub(super) fn foreign_kind(kind: &str, sender: &str) -> Self {
        let message = format!("kind: sender {sender:?} may not send {}", quoted(kind));
        Self::new(StatusCode::FORBIDDEN, "foreign-kind", message).at("kind")
    }

    /// A sender that may not forward tasks of others.
    pub(super) fn may_not_forward(sender: &str) -> Self {
        let message = format!("sender {sender:?} may not forward tasks (forward in the senders file)");
        Self::new(StatusCode::FORBIDDEN, "may-not-forward", message)
    }

    /// A request from a web page of another origin.
    pub(super) fn foreign_origin(origin: &str) -> Self {
        let message = format!("Origin: pages of {} may not send (allowed_origins)", quoted(origin));
        Self::new(StatusCode::FORBIDDEN, "foreign-origin", message).at("Origin")
    }

    /// A connection without TLS, which the setting `tls_only` refuses.
    pub(super) fn tls_required() -> Self {
        Self::new(StatusCode::FORBIDDEN, "tls-required", "this port accepts TLS only (tls_only)")
    }

    /// A key that the same sender has used with another body, or the source and id of the event at this index.
    pub(super) fn key_reused(event: Option<usize>) -> Self {
        let reused = |field: &'static str, message| {
            let message = format!("{field}: {message}");
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", message).at(field)
        };
        match event {
            Some(event) => reused("id", "source and id were used with other data").of_record(event),
            None => reused("Idempotency-Key", "the key was used with another body"),
        }
    }

    /// The sender's rate limit is used up until `wait` has passed.
    pub(super) fn rate_limited(per_second: u32, wait: Duration) -> Self {
        let message = format!("rate limit of {per_second} records per second exceeded");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", message).retry_after(wait)
    }

    /// The sender was too slow: `what` is `body` or `line`.
    pub(super) fn timeout(what: &str, limit: Duration) -> Self {
        let message = format!("{what} did not arrive within {limit:?}");
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// The broker refused the tasks or is unavailable. Some of them may be stored all the same; sending all of them
    /// again under the same ids has no second effect.
    pub(super) fn broker(error: &PublishError, wait: Duration) -> Self {
        let code = match error {
            PublishError::TooLarge { .. } => {
                return Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", error.to_string());
            }
            PublishError::Busy { .. } | PublishError::Refused { .. } | PublishError::Blocked => "busy",
            _ => "unavailable",
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, error.to_string()).retry_after(wait)
    }

    /// Forwarded tasks at a gateway that is not connected to a broker.
    pub(super) fn no_broker() -> Self {
        let message = "this gateway forwards to another one (forward.url); forward to that one directly";
        Self::new(StatusCode::NOT_IMPLEMENTED, "no-broker", message)
    }

    /// The spool has not stored the tasks. Sending all of them again under the same ids has no second effect.
    pub(super) fn spool(error: &SpoolError, wait: Duration) -> Self {
        let code = match error {
            SpoolError::Full { .. } | SpoolError::TooOld { .. } | SpoolError::LowDisk { .. } => "busy",
            _ => "unavailable",
        };
        let message = format!("the broker does not confirm, and the spool refuses: {error}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(wait)
    }

    /// The sender's address has as many connections or requests as `most` allows.
    pub(super) fn too_many_of_a_source(most: usize, wait: Duration) -> Self {
        let limit = format!("gateway.max_connections_per_source {most}");
        Self::overloaded(format!("too many connections from this address ({limit})"), wait)
    }

    /// The gateway is overloaded. `why` names the resource that is used up, and its limit.
    pub(super) fn overloaded(why: impl Into<String>, wait: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", why).retry_after(wait)
    }

    /// The answer in the TCP line protocol, without the line ending.
    pub(super) fn line(&self) -> String {
        format!("error {} {}", self.code, self.message.replace(['\r', '\n'], " "))
    }
}

impl From<BadRecord> for Refusal {
    fn from(error: BadRecord) -> Self {
        let refusal = Self::invalid(error.code, error.to_string()).at(error.field);
        Self { record: Some(error.index), ..refusal }
    }
}

impl From<KindRefused> for Refusal {
    fn from(error: KindRefused) -> Self {
        let code = match error {
            KindRefused::Invalid(_) => "bad-kind",
            KindRefused::NoLane { .. } => "no-lane",
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, error.to_string()).at("kind")
    }
}

impl From<IdError> for Refusal {
    fn from(error: IdError) -> Self {
        Self::field("Idempotency-Key", error)
    }
}

#[cfg(test)]
mod tests;
