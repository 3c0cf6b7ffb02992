//! The bodies of answers: `ExportMetricsServiceResponse` and `google.rpc.Status`.

use axum::http::StatusCode;
use prost::Message;
use serde_json::json;

use super::{OtlpEncoding, Rejected};
use crate::refusal::Refusal;

#[derive(Clone, PartialEq, prost::Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_data_points: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// The body of a 200.
pub(crate) fn exported(encoding: OtlpEncoding, rejected: &Rejected) -> Vec<u8> {
    let partial_success = (!rejected.is_empty()).then(|| PartialSuccess {
        rejected_data_points: i64::try_from(rejected.points).unwrap_or(i64::MAX),
        error_message: rejected.message(),
    });
    match (encoding, partial_success) {
        (OtlpEncoding::Protobuf, partial_success) => ExportResponse { partial_success }.encode_to_vec(),
        (OtlpEncoding::Json, None) => b"{}".to_vec(),
        (OtlpEncoding::Json, Some(PartialSuccess { rejected_data_points, error_message })) => {
            // As a number, which every parser of Protobuf's JSON takes; that of Rust's SDK takes no text.
            let partial = json!({"rejectedDataPoints": rejected_data_points, "errorMessage": error_message});
            json!({ "partialSuccess": partial }).to_string().into_bytes()
        }
    }
}

/// The HTTP status and the body of a refusal. Exporters repeat a request after 429 and 503 only.
pub(crate) fn status(encoding: OtlpEncoding, refusal: &Refusal) -> (StatusCode, Vec<u8>) {
    let status = match refusal.status {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        // The same body may arrive in time.
        StatusCode::REQUEST_TIMEOUT => StatusCode::SERVICE_UNAVAILABLE,
        status => status,
    };
    let code = match status {
        StatusCode::UNAUTHORIZED => 16,
        StatusCode::FORBIDDEN => 7,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        _ => 3,
    };
    let message = refusal.message.clone();
    let body = match encoding {
        OtlpEncoding::Protobuf => Status { code, message }.encode_to_vec(),
        OtlpEncoding::Json => json!({ "code": code, "message": message }).to_string().into_bytes(),
    };
    (status, body)
}
