//! The answer to a refused request: a problem document (RFC 9457).

use std::num::NonZeroU32;

use axum::{
    Extension,
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use serde_json::json;

use crate::refusal::Refusal;

/// An entry of the lists `refused` and `notes` of an answer.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    code: &'static str,
    detail: &'a str,
}

impl<'a> Entry<'a> {
    pub(super) fn all(refusals: &'a [Refusal]) -> Vec<Self> {
        let entry = |Refusal { record, line, field, code, message, .. }: &'a Refusal| Self {
            record: *record,
            line: *line,
            field: field.as_deref(),
            code,
            detail: message,
        };
        refusals.iter().map(entry).collect()
    }
}

/// The code of a refusal in a response, for the audit log.
#[derive(Clone, Copy)]
pub(super) struct RefusalCode(pub(super) &'static str);

impl Refusal {
    /// The problem document. Its type is always `about:blank`: status and code identify the problem.
    pub(super) fn problem(&self) -> String {
        let Self { status, code, message, record, field, refused, .. } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        let mut problem = json!({
            "type": "about:blank", "title": title, "status": status.as_u16(), "code": code, "detail": message
        });
        if let Some(record) = record {
            problem["record"] = json!(record);
        }
        if let Some(field) = field {
            problem["field"] = json!(field);
        }
        if !refused.is_empty() {
            problem["refused"] = json!(Entry::all(refused));
        }
        problem.to_string()
    }

    /// The value of `Retry-After`: whole seconds, and at least 1, because 0 would mean immediately.
    pub(super) fn retry_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_secs_f64().ceil().max(1.0) as u64)
    }

    /// A response with this status and body, and the headers of the refusal.
    pub(super) fn response(
        &self,
        status: StatusCode,
        media_type: &'static str,
        body: impl Into<Body>,
    ) -> Response<Body> {
        let code = Extension(RefusalCode(self.code));
        let wait = self.retry_seconds().map(|seconds| [(header::RETRY_AFTER, HeaderValue::from(seconds))]);
        let unauthorized = self.status == StatusCode::UNAUTHORIZED;
        let authenticate = unauthorized.then_some([(header::WWW_AUTHENTICATE, "Bearer")]);
        let close = (self.status == StatusCode::REQUEST_TIMEOUT).then_some([(header::CONNECTION, "close")]);
        let media_type = [(header::CONTENT_TYPE, media_type)];
        (status, code, wait, authenticate, close, media_type, body.into()).into_response()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        self.response(self.status, "application/problem+json", self.problem())
    }
}
