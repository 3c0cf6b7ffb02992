//! An authenticated request, its headers and its body.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, request},
};
use base64::Engine;
use garenne_common::config::Size;
use garenne_protocol::{
    quoted,
    task::{Kind, NewTask, TaskId, TraceContext},
};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::time::timeout;

use super::request_trace::RequestTrace;
use crate::{
    auth::{Caller, Peer},
    context::GatewayContext,
    decompress::Encoding,
    memory::{Account, append},
    payload::Payload,
    record_tasks::Sender,
    refusal::Refusal,
    task_properties::{content_type, milliseconds, short_text},
};

/// The number of records that a response confirms.
#[derive(Clone, Copy)]
pub(super) struct ConfirmedRecords(pub(super) usize);

/// The codes of what is left out of a request that is accepted.
#[derive(Clone)]
pub(super) struct LeftOutCodes(pub(super) Vec<&'static str>);

/// An authenticated request. Its body is not read yet.
pub(super) struct Authenticated {
    pub(super) caller: Arc<Caller>,
    pub(super) head: request::Parts,
    /// Whether the sender wants all records accepted or none.
    pub(super) atomic: bool,
    body: Body,
}

impl Authenticated {
    /// Authenticates a request. The token is the credential of the schemes `Bearer` and `Token`, the password of
    /// `Basic`, or the `password` of the query.
    pub(super) fn new(
        gateway: &GatewayContext,
        request: Request,
        password: Option<&str>,
    ) -> Result<Self, Refusal> {
        let (head, body) = request.into_parts();
        let peer: &Peer = head.extensions.get().ok_or_else(|| Refusal::unauthorized("unknown peer"))?;
        let given = text(&head.headers, "authorization")?.and_then(|value| value.split_once(' '));
        let is = |scheme: &str, name: &str| scheme.eq_ignore_ascii_case(name);
        let basic;
        let token = match given {
            Some((scheme, token)) if is(scheme, "bearer") || is(scheme, "token") => Some(token.trim()),
            Some((scheme, credentials)) if is(scheme, "basic") => {
                basic = base64::prelude::BASE64_STANDARD.decode(credentials.trim()).unwrap_or_default();
                str::from_utf8(&basic)
                    .ok()
                    .and_then(|pair| pair.split_once(':'))
                    .map(|(_, password)| password)
            }
            _ => password,
        };
        let caller = gateway.access.caller(peer, token)?;
        if let Some(trace) = head.extensions.get::<RequestTrace>() {
            trace.start(&gateway.traces, &head);
        }
        let atomic = atomic(head.uri.query().unwrap_or_default())?;
        Ok(Self { caller, head, atomic, body })
    }

    /// The trace context that the request's tasks continue.
    pub(super) fn trace(&self) -> Option<TraceContext> {
        self.head.extensions.get::<RequestTrace>()?.context()
    }

    /// The id that the sender gave the request, as an id of its own.
    pub(super) fn idempotency_key(&self) -> Result<Option<TaskId>, Refusal> {
        let key = text(&self.head.headers, "idempotency-key")?;
        let key = key.map(TaskId::parse).transpose()?;
        Ok(key.map(|key| self.caller.own_id(key)))
    }

    /// The sender of the request's readings.
    pub(super) fn into_sender(self, idempotency_key: Option<TaskId>) -> Sender {
        Sender { idempotency_key, trace: self.trace(), caller: self.caller, atomic: self.atomic }
    }

    /// A task of this kind with the properties of the headers and without a body. Its id is the idempotency key, if
    /// there is one.
    pub(super) fn task(&self, kind: Kind, idempotency_key: Option<&TaskId>) -> Result<NewTask, Refusal> {
        let headers = &self.head.headers;
        let content_type = content_type(text(headers, "content-type")?)?;
        let task = NewTask::new(kind, content_type, Vec::new());
        Ok(NewTask {
            id: idempotency_key.cloned().unwrap_or(task.id),
            group: name(headers, "garenne-group")?,
            key: name(headers, "garenne-key")?,
            delay: duration(headers, "garenne-delay-ms")?,
            timeout: duration(headers, "garenne-timeout-ms")?,
            trace: self.trace(),
            ..task
        })
    }

    /// Reads the body within limits on its size, its duration and the memory budget.
    ///
    /// Chunks are copied into one buffer, because even a chunk of one byte would keep hyper's read buffer alive. Memory
    /// is reserved as bytes arrive and not by `content-length`, so that a sender that sends nothing reserves nothing.
    pub(super) async fn read_body(
        &mut self,
        gateway: &GatewayContext,
        limit: Size,
    ) -> Result<Payload, Refusal> {
        let headers = &self.head.headers;
        let announced = text(headers, "content-length")?.and_then(|length| length.parse().ok());
        if announced.is_some_and(|length: u64| length > limit.0) {
            return Err(Refusal::too_large("body", limit));
        }
        let encoding = Encoding::parse(text(headers, "content-encoding")?)?;
        let limit = announced.map_or(limit, Size);
        let account = self.head.extensions.get::<Account>();
        let account = account.cloned().unwrap_or_else(|| gateway.budget.account(None));
        let (mut bytes, mut memory) = (Vec::new(), account.empty());
        let collecting = async {
            while let Some(frame) = self.body.frame().await {
                let frame = frame.map_err(|error| {
                    Refusal::not_json(format!("connection lost: {}", quoted(&error.to_string())))
                })?;
                // Trailers are ignored.
                let Ok(data) = frame.into_data() else { continue };
                append(&mut bytes, &data, &mut memory, "body", limit)?;
            }
            Ok::<_, Refusal>(())
        };
        let body_timeout = gateway.limits.body_timeout;
        timeout(body_timeout, collecting).await.map_err(|_| Refusal::timeout("body", body_timeout))??;
        match encoding {
            Some(encoding) => Payload::compressed(encoding, bytes, memory),
            None => Ok(Payload::plain(bytes, memory)),
        }
    }
}

/// The parameter `atomic` of a query.
///
/// # Errors
/// It is neither `true` nor `false`.
fn atomic(query: &str) -> Result<bool, Refusal> {
    #[derive(Default, Deserialize)]
    struct Parameters {
        atomic: Option<String>,
    }
    if !query.contains("atomic") {
        return Ok(false);
    }
    let given = serde_urlencoded::from_str::<Parameters>(query).unwrap_or_default().atomic;
    match given.as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(Refusal::field("atomic", format!("{}: expected true or false", quoted(other)))),
    }
}

/// A header as text.
///
/// # Errors
/// It has characters that are not visible ASCII.
pub(super) fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Refusal> {
    let text = headers.get(name).map(HeaderValue::to_str).transpose();
    text.map_err(|_| Refusal::field(name, "expected visible ASCII"))
}

fn name(headers: &HeaderMap, field: &'static str) -> Result<Option<String>, Refusal> {
    short_text(field, text(headers, field)?)
}

fn duration(headers: &HeaderMap, field: &'static str) -> Result<Option<Duration>, Refusal> {
    let Some(value) = text(headers, field)? else { return Ok(None) };
    milliseconds(field, quoted(value), value.trim().parse().ok()).map(Some)
}
