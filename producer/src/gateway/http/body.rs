//! A request's body, bounded in bytes and in time, before and after decompression.

use std::io::Read;

use axum::{
    body::{Body, Bytes},
    http::HeaderMap,
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::super::{limits::Limits, refusal::Refusal};

/// Reads all of it.
pub(super) async fn read(body: Body, headers: &HeaderMap, limits: &Limits) -> Result<Bytes, Refusal> {
    let too_large = || Refusal::TooLarge { what: "body", limit: limits.max_body };
    let announced = super::text(headers, "content-length")?.and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.max_body.0) {
        return Err(too_large());
    }
    let gzipped = match super::text(headers, "content-encoding")?.map(str::trim) {
        None | Some("" | "identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(other) => return Err(Refusal::Encoding(other.to_owned())),
    };
    let collecting = Limited::new(body, limits.max_body.bytes()).collect();
    let body = match timeout(limits.body_timeout, collecting).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => return Err(Refusal::NotJson(format!("cut off: {error}"))),
        Err(_) => return Err(Refusal::Timeout { what: "body", limit: limits.body_timeout }),
    };
    if gzipped { decompress(&body, limits) } else { Ok(body) }
}

/// Never holds more than the limit, whatever the compressed bytes promise.
fn decompress(body: &[u8], limits: &Limits) -> Result<Bytes, Refusal> {
    let mut plain = Vec::new();
    let mut bounded = flate2::read::MultiGzDecoder::new(body).take(limits.max_body.0 + 1);
    bounded.read_to_end(&mut plain).map_err(|error| Refusal::NotJson(format!("not gzip: {error}")))?;
    if plain.len() as u64 > limits.max_body.0 {
        return Err(Refusal::TooLarge { what: "decompressed body", limit: limits.max_body });
    }
    Ok(plain.into())
}
