//! Answers of the gateway to browsers (CORS), for pages of the origins that the setting `allowed_origins` lists.

use std::time::Duration;

use axum::{
    Router,
    http::{HeaderName, HeaderValue, Method, header},
};
use tower_http::cors::CorsLayer;

/// How long a browser may remember that a page may send.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The headers of requests that pages may set besides those that every page may.
const HEADERS: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("garenne-delay-ms"),
    HeaderName::from_static("garenne-group"),
    HeaderName::from_static("garenne-key"),
    HeaderName::from_static("garenne-timeout-ms"),
    HeaderName::from_static("traceparent"),
];

/// Lets pages of these origins send and read the answers.
pub(super) fn allow<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    origins: &[HeaderValue],
) -> Router<S> {
    if origins.is_empty() {
        return router;
    }
    let layer = CorsLayer::new()
        .allow_origin(origins.to_vec())
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(HEADERS)
        .expose_headers([header::RETRY_AFTER])
        .max_age(MAX_AGE);
    router.layer(layer)
}
