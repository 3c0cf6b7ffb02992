//! A request over HTTP, its headers and its body.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract,
    http::{HeaderMap, HeaderValue, request::Parts},
};
use base64::Engine;
use garenne_common::config::Size;
use garenne_protocol::{
    quoted,
    task::{Kind, NewTask, TaskId},
};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::request_trace::RequestTrace;
use crate::{
    auth::{Caller, Peer},
    context::GatewayContext,
    decompress::Encoding,
    ingest::{Format, Stored},
    memory::{Account, append},
    payload::Payload,
    record_tasks::RequestProperties,
    refusal::Refusal,
    request::Request,
    task_properties::{content_type, milliseconds, only, short_text},
};

/// The query parameter of requests that are accepted as a whole or not at all.
pub(super) const ATOMIC: &str = "atomic";

/// The number of records that a response confirms.
#[derive(Clone, Copy)]
pub(super) struct ConfirmedRecords(pub(super) usize);

/// The codes of what is left out of a request that is accepted.
#[derive(Clone)]
pub(super) struct LeftOutCodes(pub(super) Vec<&'static str>);

/// A request over HTTP: its format by its headers, and its answer.
pub(super) struct HttpRequest<F, A> {
    head: Parts,
    body: Body,
    /// The password of the query.
    password: Option<String>,
    /// The parameters that the query may have besides `atomic`; `None` if the format checks them.
    parameters: Option<&'static [&'static str]>,
    format: F,
    answer: A,
}

impl<F, A> HttpRequest<F, A> {
    /// `format` may also set the properties of the sender that headers give.
    pub(super) fn new<T: Format, R>(request: extract::Request, format: F, answer: A) -> Self
    where
        F: Fn(&Parts, &mut RequestProperties) -> Result<T, Refusal>,
        A: FnOnce(&GatewayContext, Result<Stored<T::Notes>, Refusal>) -> R,
    {
        let (head, body) = request.into_parts();
        Self { head, body, password: None, parameters: Some(&[]), format, answer }
    }

    pub(super) fn with_password(self, password: Option<String>) -> Self {
        Self { password, ..self }
    }

    pub(super) fn with_parameters(self, parameters: &'static [&'static str]) -> Self {
        Self { parameters: Some(parameters), ..self }
    }

    /// `format` checks the parameters of the query.
    pub(super) fn with_own_parameters(self) -> Self {
        Self { parameters: None, ..self }
    }
}

impl<T, F, A, R> Request for HttpRequest<F, A>
where
    T: Format,
    F: Fn(&Parts, &mut RequestProperties) -> Result<T, Refusal> + Send,
    A: FnOnce(&GatewayContext, Result<Stored<T::Notes>, Refusal>) -> R + Send,
{
    type Format = T;
    type Answer = R;

    fn authenticate(&mut self, gateway: &GatewayContext) -> Result<Arc<Caller>, Refusal> {
        authenticate(gateway, &self.head, self.password.as_deref())
    }

    async fn read(
        &mut self,
        gateway: &GatewayContext,
        caller: Arc<Caller>,
    ) -> Result<(RequestProperties, T, Payload), Refusal> {
        let trace = self.head.extensions.get::<RequestTrace>().and_then(RequestTrace::context);
        if let Some(known) = self.parameters {
            check_parameters(&self.head, |name| name == ATOMIC || known.contains(&name))?;
        }
        let atomic = atomic(&self.head)?;
        let mut properties = RequestProperties { caller, idempotency_key: None, trace, atomic };
        let format = (self.format)(&self.head, &mut properties)?;
        let body = read_body(gateway, &self.head, &mut self.body, gateway.limits.max_body).await?;
        Ok((properties, format, body))
    }

    fn answer(self, gateway: &GatewayContext, stored: Result<Stored<T::Notes>, Refusal>) -> R {
        (self.answer)(gateway, stored)
    }
}

/// Authenticates a request, and begins its span. The token is the credential of the schemes `Bearer` and `Token`, the
/// password of `Basic`, or the `password` of the query.
pub(super) fn authenticate(
    gateway: &GatewayContext,
    head: &Parts,
    password: Option<&str>,
) -> Result<Arc<Caller>, Refusal> {
    let peer: &Peer = head.extensions.get().ok_or_else(|| Refusal::unauthorized("unknown peer"))?;
    let given = text(&head.headers, "authorization")?.and_then(|value| value.split_once(' '));
    let is = |scheme: &str, name: &str| scheme.eq_ignore_ascii_case(name);
    let basic;
    let token = match given {
        Some((scheme, token)) if is(scheme, "bearer") || is(scheme, "token") => Some(token.trim()),
        Some((scheme, credentials)) if is(scheme, "basic") => {
            basic = base64::prelude::BASE64_STANDARD.decode(credentials.trim()).unwrap_or_default();
            let pair = str::from_utf8(&basic).ok().and_then(|pair| pair.split_once(':'));
            pair.map(|(_, password)| password)
        }
        _ => password,
    };
    let caller = gateway.access.caller(peer, token)?;
    if let Some(trace) = head.extensions.get::<RequestTrace>() {
        trace.start(&gateway.traces, head);
    }
    Ok(caller)
}

/// Reads a body within limits on its size, its duration and the memory budget.
///
/// Chunks are copied into one buffer, because even a chunk of one byte would keep hyper's read buffer alive. Memory is
/// reserved as bytes arrive and not by `content-length`, so that a sender that sends nothing reserves nothing.
pub(super) async fn read_body(
    gateway: &GatewayContext,
    head: &Parts,
    body: &mut Body,
    limit: Size,
) -> Result<Payload, Refusal> {
    let announced = text(&head.headers, "content-length")?.and_then(|length| length.parse().ok());
    if announced.is_some_and(|length: u64| length > limit.0) {
        return Err(Refusal::too_large("body", limit));
    }
    let encoding = Encoding::parse(text(&head.headers, "content-encoding")?)?;
    let limit = announced.map_or(limit, Size);
    let account = head.extensions.get::<Account>();
    let account = account.cloned().unwrap_or_else(|| gateway.budget.account(None));
    let (mut bytes, mut memory) = (Vec::new(), account.empty());
    let collecting = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Refusal::malformed_body(format!("connection lost: {}", quoted(&error.to_string())))
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

/// The id that the sender gave a request, as an id of its own.
pub(super) fn idempotency_key(head: &Parts, caller: &Caller) -> Result<Option<TaskId>, Refusal> {
    let key = text(&head.headers, "idempotency-key")?;
    let key = key.map(TaskId::parse).transpose()?;
    Ok(key.map(|key| caller.own_id(key)))
}

/// A task of this kind with the properties of the headers and without a body. Its id is the idempotency key, if there is
/// one.
pub(super) fn task(head: &Parts, kind: Kind, properties: &RequestProperties) -> Result<NewTask, Refusal> {
    let headers = &head.headers;
    let content_type = content_type(text(headers, "content-type")?)?;
    let task = NewTask::new(kind, content_type, Vec::new());
    Ok(NewTask {
        id: properties.idempotency_key.clone().unwrap_or(task.id),
        group: name(headers, "garenne-group")?,
        key: name(headers, "garenne-key")?,
        delay: duration(headers, "garenne-delay-ms")?,
        timeout: duration(headers, "garenne-timeout-ms")?,
        trace: properties.trace.clone(),
        ..task
    })
}

/// Checks that a query has only parameters that are known: one that is misspelt would be ignored.
pub(super) fn check_parameters(head: &Parts, is_known: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    match parameters(head).iter().find(|(name, _)| !is_known(name)) {
        Some((other, _)) => Err(Refusal::field("query", format!("unknown parameter {}", quoted(other)))),
        None => Ok(()),
    }
}

/// The parameter `atomic` of a query.
fn atomic(head: &Parts) -> Result<bool, Refusal> {
    let given = parameters(head);
    let mut given = given.iter().filter(|(name, _)| name == ATOMIC).map(|(_, value)| &**value);
    match (given.next(), given.next()) {
        (_, Some(_)) => Err(Refusal::field(ATOMIC, "given twice")),
        (None, _) => Ok(false),
        (Some(given @ ("true" | "false")), _) => Ok(given == "true"),
        (Some(other), _) => Err(Refusal::field(ATOMIC, format!("{}: expected true or false", quoted(other)))),
    }
}

fn parameters(head: &Parts) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    serde_urlencoded::from_str(head.uri.query().unwrap_or_default()).unwrap_or_default()
}

/// A header as text. Refuses one that is given more than once, or has characters that are not visible ASCII.
pub(super) fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Refusal> {
    let text = only(headers, name)?.map(HeaderValue::to_str).transpose();
    text.map_err(|_| Refusal::field(name, "expected visible ASCII"))
}

fn name(headers: &HeaderMap, field: &'static str) -> Result<Option<String>, Refusal> {
    short_text(field, text(headers, field)?)
}

fn duration(headers: &HeaderMap, field: &'static str) -> Result<Option<Duration>, Refusal> {
    let Some(value) = text(headers, field)? else { return Ok(None) };
    milliseconds(field, quoted(value), value.trim().parse().ok()).map(Some)
}
