//! Responses to accepted requests.

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Response, StatusCode, header},
};
use garenne_protocol::task::TaskId;
use serde::Serialize;

use crate::{memory::Reservation, payload::Receipts};

/// The body of a 202.
#[derive(Debug, Serialize)]
struct Accepted<'a> {
    accepted: usize,
    ids: Vec<&'a str>,
}

/// Response bytes that own their memory reservation, which ends when they are written or the connection is closed.
struct ReservedBytes {
    bytes: Vec<u8>,
    _memory: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// 202 with the task ids.
pub(super) fn accepted(Receipts { ids, mut memory }: Receipts) -> Response<Body> {
    let body = Accepted { accepted: ids.len(), ids: ids.iter().map(TaskId::as_str).collect() };
    let bytes = serde_json::to_vec(&body).expect("ids are plain JSON");
    memory.shrink_to(bytes.capacity());
    let mut response = Response::new(Body::from(Bytes::from_owner(ReservedBytes { bytes, _memory: memory })));
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.extensions_mut().insert(ConfirmedRecords(ids.len()));
    response
}

/// The number of records that a response confirms, for the metrics.
#[derive(Clone, Copy)]
pub(super) struct ConfirmedRecords(pub(super) usize);
