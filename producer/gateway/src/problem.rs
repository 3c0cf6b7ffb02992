//! Refusals as problem documents (RFC 9457).

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;

use crate::refusal::Refusal;

/// The code of a refusal in a response, for the audit log.
#[derive(Clone, Copy)]
pub(super) struct RefusalCode(pub(super) &'static str);

/// The body of the response to a refused request.
#[derive(Debug, Serialize)]
struct Problem<'a> {
    /// Always `about:blank`: the status and [`Problem::code`] identify the problem.
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let (record, field) = self.place();
        let problem = Problem {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: self.to_string(),
            code: self.code(),
            record,
            field,
        };
        let body = serde_json::to_vec(&problem).expect("a problem is plain JSON");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after() {
            // At least 1: the header has whole seconds, and 0 would mean immediately.
            let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Unauthorized(_)) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self, Self::Timeout { .. }) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(RefusalCode(self.code()));
        response
    }
}
