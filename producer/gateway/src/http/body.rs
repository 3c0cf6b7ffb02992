//! A request's body, bounded in bytes, in time and by the memory budget.

use axum::{body::Body, http::HeaderMap};
use garenne_common::config::Size;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::request::text;
use crate::{
    memory::{Reservation, append},
    parts::Parts,
    payload::Payload,
    refusal::{Refusal, quoted},
};

/// Reads all of it, at most `most` bytes.
///
/// Pieces are copied into one buffer: a piece of one byte would keep the buffer that it was read into alive. Memory
/// is reserved as bytes arrive and not by what is announced, so that who only announces holds nothing.
pub(super) async fn read(
    body: Body,
    headers: &HeaderMap,
    parts: &Parts,
    most: Size,
) -> Result<Payload, Refusal> {
    let announced = text(headers, "content-length")?.and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > most.0) {
        return Err(Refusal::TooLarge { what: "body", limit: most });
    }
    let gzip = match text(headers, "content-encoding")?.map(str::trim) {
        None | Some("" | "identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(other) => return Err(Refusal::Encoding(other.to_owned())),
    };
    let mut memory = parts.budget.empty();
    let limit = parts.limits.body_timeout;
    let collecting = collect(body, &mut memory, announced.map_or(most, Size));
    match timeout(limit, collecting).await {
        Ok(bytes) => Ok(Payload::new(bytes?, gzip, memory)),
        Err(_) => Err(Refusal::Timeout { what: "body", limit }),
    }
}

async fn collect(mut body: Body, memory: &mut Reservation, most: Size) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Refusal::NotJson(format!("cut off: {}", quoted(&error.to_string()))))?;
        // Trailers are no part of a body.
        let Ok(data) = frame.into_data() else { continue };
        append(&mut bytes, &data, memory, "body", most)?;
    }
    Ok(bytes)
}
