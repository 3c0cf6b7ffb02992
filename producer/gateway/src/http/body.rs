//! Reads a request's body within limits on its size, its duration and the memory budget.

use axum::{body::Body, http::HeaderMap};
use garenne_common::config::Size;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::request::text;
use crate::{
    context::GatewayContext,
    memory::{Reservation, append},
    payload::Payload,
    refusal::{Refusal, quoted},
};

/// Reads a body of at most `limit` bytes.
///
/// Chunks are copied into one buffer, because even a chunk of one byte would keep hyper's read buffer alive. Memory is
/// reserved as bytes arrive and not by `content-length`, so that a sender that sends nothing reserves nothing.
pub(super) async fn read(
    body: Body,
    headers: &HeaderMap,
    gateway: &GatewayContext,
    limit: Size,
) -> Result<Payload, Refusal> {
    let announced = text(headers, "content-length")?.and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit.0) {
        return Err(Refusal::TooLarge { what: "body", limit });
    }
    let gzip = match text(headers, "content-encoding")?.map(str::trim) {
        None | Some("" | "identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(other) => return Err(Refusal::Encoding(other.to_owned())),
    };
    let mut memory = gateway.budget.empty();
    let body_timeout = gateway.limits.body_timeout;
    let collecting = collect(body, &mut memory, announced.map_or(limit, Size));
    match timeout(body_timeout, collecting).await {
        Ok(bytes) => Ok(Payload::new(bytes?, gzip, memory)),
        Err(_) => Err(Refusal::Timeout { what: "body", limit: body_timeout }),
    }
}

async fn collect(mut body: Body, memory: &mut Reservation, limit: Size) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| Refusal::NotJson(format!("connection lost: {}", quoted(&error.to_string()))))?;
        // Trailers are ignored.
        let Ok(data) = frame.into_data() else { continue };
        append(&mut bytes, &data, memory, "body", limit)?;
    }
    Ok(bytes)
}
