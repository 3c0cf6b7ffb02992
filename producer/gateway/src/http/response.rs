//! Responses to accepted requests.

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Response, StatusCode, header},
};
use garenne_protocol::task::TaskId;
use serde::Serialize;

use crate::{memory::Reservation, payload::Receipts};

/// What a 202 says.
#[derive(Debug, Serialize)]
struct Accepted<'a> {
    accepted: usize,
    ids: Vec<&'a str>,
}

/// The answer's bytes own the reservation: it ends when they are written or the connection is gone.
struct Reserved {
    bytes: Vec<u8>,
    _memory: Reservation,
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn accepted(Receipts { ids, mut memory }: Receipts) -> Response<Body> {
    let body = Accepted { accepted: ids.len(), ids: ids.iter().map(TaskId::as_str).collect() };
    let bytes = serde_json::to_vec(&body).expect("ids are plain JSON");
    memory.shrink_to(bytes.capacity());
    let mut response = Response::new(Body::from(Bytes::from_owner(Reserved { bytes, _memory: memory })));
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.extensions_mut().insert(Receipted(ids.len()));
    response
}

/// How many records a response receipts, for the counters.
#[derive(Clone, Copy)]
pub(super) struct Receipted(pub(super) usize);
