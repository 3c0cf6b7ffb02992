//! Headers of a request.

use std::time::Duration;

use axum::http::{HeaderMap, request};
use base64::Engine;
use garenne_protocol::task::{ContentType, Envelope, TraceContext};

use crate::{
    auth::{Caller, Peer},
    context::GatewayContext,
    ingest::TaskOptions,
    refusal::{Refusal, quoted},
};

/// Authenticates a request. The token is the credential of the schemes `Bearer` and `Token`, the password of `Basic`,
/// or the `password` of the query.
pub(super) fn caller_of(
    gateway: &GatewayContext,
    peer: Option<&Peer>,
    headers: &HeaderMap,
    password: Option<&str>,
) -> Result<Caller, Refusal> {
    let peer = peer.ok_or(Refusal::Unauthorized("unknown peer"))?;
    let given = text(headers, "authorization")?.and_then(|value| value.split_once(' '));
    let basic;
    let token = match given {
        Some((scheme, token))
            if scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("token") =>
        {
            Some(token.trim())
        }
        Some((scheme, credentials)) if scheme.eq_ignore_ascii_case("basic") => {
            basic = base64::prelude::BASE64_STANDARD.decode(credentials.trim()).unwrap_or_default();
            str::from_utf8(&basic).ok().and_then(|pair| pair.split_once(':')).map(|(_, password)| password)
        }
        _ => password,
    };
    gateway.access.caller(peer, token)
}

/// A header as text.
///
/// # Errors
/// It has characters that are not visible ASCII.
pub(super) fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Refusal> {
    headers
        .get(name)
        .map(|value| {
            value
                .to_str()
                .map_err(|_| Refusal::Field { field: name, problem: "expected visible ASCII".to_owned() })
        })
        .transpose()
}

/// The sender's trace context.
pub(super) fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    TraceContext::parse(parent, headers.get("tracestate").and_then(|state| state.to_str().ok()))
}

/// The trace context that a request's tasks continue.
pub(super) fn trace_of(head: &request::Parts) -> Option<TraceContext> {
    head.extensions.get().cloned()
}

pub(super) fn task_options(headers: &HeaderMap) -> Result<TaskOptions, Refusal> {
    let content_type = match text(headers, "content-type")? {
        None => ContentType::Json,
        Some(given) => {
            let media = given.split(';').next().unwrap_or_default().trim();
            if media.eq_ignore_ascii_case("application/json") {
                ContentType::Json
            } else if media.eq_ignore_ascii_case("application/senml+json") {
                ContentType::SenmlJson
            } else {
                return Err(Refusal::Media(given.to_owned()));
            }
        }
    };
    Ok(TaskOptions {
        id: text(headers, "idempotency-key")?.map(str::to_owned),
        content_type,
        group: name(headers, "garenne-group")?,
        key: name(headers, "garenne-key")?,
        delay: milliseconds(headers, "garenne-delay-ms")?,
        timeout: milliseconds(headers, "garenne-timeout-ms")?,
        trace: None,
    })
}

fn name(headers: &HeaderMap, field: &'static str) -> Result<Option<String>, Refusal> {
    let name = text(headers, field)?.map(str::to_owned);
    if name.as_ref().is_some_and(|name| name.is_empty() || name.len() > Envelope::MAX_TEXT) {
        let problem = format!("expected 1 to {} bytes", Envelope::MAX_TEXT);
        return Err(Refusal::Field { field, problem });
    }
    Ok(name)
}

fn milliseconds(headers: &HeaderMap, name: &'static str) -> Result<Option<Duration>, Refusal> {
    text(headers, name)?
        .map(|value| {
            let parsed = value.trim().parse::<i64>().ok().filter(|ms| (0..=Envelope::MAX_MS).contains(ms));
            parsed.map(|ms| Duration::from_millis(ms.unsigned_abs())).ok_or_else(|| Refusal::Field {
                field: name,
                problem: format!(
                    "{} is not a whole number of milliseconds from 0 to {}",
                    quoted(value),
                    Envelope::MAX_MS
                ),
            })
        })
        .transpose()
}
