//! Errors as RFC 9457 problem documents.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use serde_json::json;

/// Longest text of an error of the framework, in bytes. It may quote a body.
const MAX_TEXT: usize = 64 * 1024;
/// Most of its characters that a problem document has.
const MAX_DETAIL: usize = 500;

/// Makes problem documents of the errors that the framework answers in plain text or without a body, such as those of a
/// wrong method or a body that is not JSON.
pub fn problems_only(router: Router) -> Router {
    router.layer(middleware::map_response(as_problem))
}

async fn as_problem(response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    let is_plain = media_type.is_none_or(|it| it.as_bytes().starts_with(b"text/plain"));
    let is_error = parts.status.is_client_error() || parts.status.is_server_error();
    if !is_error || !is_plain {
        return Response::from_parts(parts, body);
    }
    let text = axum::body::to_bytes(body, MAX_TEXT).await.unwrap_or_default();
    let mut detail: String = String::from_utf8_lossy(&text).chars().take(MAX_DETAIL).collect();
    if detail.is_empty() {
        detail = parts.status.canonical_reason().unwrap_or("Error").to_owned();
    }
    let mut response = Problem::new(parts.status, detail).into_response();
    // Such as `Allow`.
    for (name, value) in &parts.headers {
        if ![header::CONTENT_TYPE, header::CONTENT_LENGTH].contains(name) {
            response.headers_mut().append(name, value.clone());
        }
    }
    response
}

/// Why a request failed.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        // `about:blank`: the problem has no page of its own, and `title` is the status code's phrase.
        let body =
            json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
        let mut response = (status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::{Json, body::Body, http::Request, routing::post};
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn errors_of_the_framework_are_problem_documents() {
        let own = async |Json(body): Json<Value>| match body.is_null() {
            true => Err(Problem::new(StatusCode::CONFLICT, "own")),
            false => Ok("text"),
        };
        let router = problems_only(Router::new().route("/", post(own)));
        for (method, path, body, expected) in [
            ("POST", "/", "1", None),
            ("POST", "/", "null", Some((409, "own"))),
            ("GET", "/", "", Some((405, "Method Not Allowed"))),
            ("GET", "/other", "", Some((404, "Not Found"))),
            ("POST", "/", "{", Some((400, "Failed to parse the request body as JSON"))),
        ] {
            let request =
                Request::builder().method(method).uri(path).header("content-type", "application/json");
            let response = router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = axum::body::to_bytes(body, MAX_TEXT).await.unwrap();
            let Some((status, detail)) = expected else {
                assert_eq!(body, "text");
                continue;
            };
            let problem: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(parts.headers[header::CONTENT_TYPE], "application/problem+json");
            assert_eq!((parts.status.as_u16(), &problem["status"]), (status, &json!(status)));
            assert!(problem["detail"].as_str().unwrap().starts_with(detail), "{problem}");
            assert_eq!(parts.headers.contains_key(header::ALLOW), status == 405);
        }
    }
}
