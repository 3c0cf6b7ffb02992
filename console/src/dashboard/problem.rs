//! Errors as JSON problems (RFC 9457).

use axum::{
    Json,
    extract::rejection::QueryRejection,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use garenne_common::exit::{Exit, Failure};
use serde_json::json;

/// An error response.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

/// A failed action on the broker.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match failure.exit {
            Exit::Usage | Exit::Config => StatusCode::BAD_REQUEST,
            Exit::BrokerUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Exit::Denied => StatusCode::BAD_GATEWAY,
            _ => StatusCode::CONFLICT,
        };
        Self { status, detail: failure.to_string() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let body = json!({ "title": title, "status": self.status.as_u16(), "detail": self.detail });
        (self.status, [(header::CONTENT_TYPE, "application/problem+json")], Json(body)).into_response()
    }
}
