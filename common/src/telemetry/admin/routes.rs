//! The routes of the admin port.

use std::sync::{Arc, OnceLock};

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::sync::mpsc;

use super::{Process, problem::Problem};
use crate::{
    reloaded::Reloaded,
    shutdown::{Command, Mode},
    telemetry::Metrics,
};

/// Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The state behind the port's routes.
pub(super) struct Served {
    pub(super) metrics: Metrics,
    /// Receives the lifecycle commands.
    pub(super) commands: mpsc::Sender<Command>,
    /// The mode of a `POST /shutdown` that names none.
    pub(super) mode: Mode,
    /// Why the process is not ready before it has begun.
    pub(super) awaited: &'static str,
    pub(super) process: OnceLock<Arc<dyn Process>>,
}

impl Served {
    /// The process, once it has begun.
    fn process(&self) -> Option<&dyn Process> {
        self.process.get().map(Arc::as_ref)
    }

    fn command(&self, command: Command) {
        if self.commands.try_send(command).is_err() {
            ::tracing::warn!(?command, "command dropped: the command queue is full");
        }
    }
}

/// The admin port's routes; without a `token`, commands are refused.
pub(super) fn router(served: Arc<Served>, token: Option<Arc<Reloaded<SecretString>>>) -> Router {
    let commands = Router::new()
        .route("/shutdown", post(shutdown))
        .route("/quiet", post(quiet))
        .route("/resume", post(resume))
        .route("/tasks/{id}/stop", post(stop_task))
        .route("/groups/{group}/{command}", post(group))
        .route_layer(middleware::from_fn_with_state(token, authorize));
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/pool", get(pool))
        .merge(commands)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .with_state(served)
}

/// Liveness depends on nothing else, in particular not on the broker.
async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(State(served): State<Arc<Served>>) -> Response {
    let ready = served.process().map_or_else(|| Err(vec![served.awaited.to_owned()]), |it| it.ready());
    let warnings = served.process().map(|it| it.warnings()).unwrap_or_default();
    let (status, mut body) = match ready {
        Ok(()) => (StatusCode::OK, json!({ "ready": true })),
        Err(reasons) => (StatusCode::SERVICE_UNAVAILABLE, json!({ "ready": false, "reasons": reasons })),
    };
    if !warnings.is_empty() {
        body["warnings"] = json!(warnings);
    }
    (status, Json(body)).into_response()
}

async fn metrics(State(served): State<Arc<Served>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], served.metrics.encode())
}

async fn pool(State(served): State<Arc<Served>>) -> Json<Value> {
    Json(served.process().map_or_else(|| json!({}), |it| it.pool()))
}

#[derive(Deserialize)]
struct ShutdownQuery {
    mode: Option<String>,
}

async fn shutdown(
    State(served): State<Arc<Served>>,
    query: Result<Query<ShutdownQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| bad_request(error.body_text()))?;
    let mode: Mode = match query.mode {
        Some(word) => word.parse().map_err(|error| bad_request(format!("{error}")))?,
        None => served.mode,
    };
    served.command(Command::Shutdown(mode));
    Ok(accepted(json!({ "shutdown": mode })))
}

async fn quiet(State(served): State<Arc<Served>>) -> Response {
    served.command(Command::Quiet);
    accepted(json!({ "quiet": true }))
}

async fn resume(State(served): State<Arc<Served>>) -> Response {
    served.command(Command::Resume);
    accepted(json!({ "quiet": false }))
}

async fn stop_task(
    State(served): State<Arc<Served>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|error| bad_request(error.body_text()))?;
    if served.process().and_then(|it| it.tasks()).is_some_and(|tasks| tasks.stop(&id)) {
        return Ok(accepted(json!({ "task": id, "stopping": true })));
    }
    Err(Problem::new(StatusCode::NOT_FOUND, format!("task {id:?} is not held by this process")))
}

async fn group(
    State(served): State<Arc<Served>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let Path((group, word)) = path.map_err(|error| bad_request(error.body_text()))?;
    let Ok(command) = word.parse() else {
        let detail = format!("group command {word:?} is unknown, expected pause, resume or stop");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    if served.process().and_then(|it| it.tasks()).is_some_and(|tasks| tasks.group(&group, command)) {
        return Ok(accepted(json!({ "group": group, "command": word })));
    }
    Err(Problem::new(StatusCode::NOT_FOUND, format!("group {group:?} has no tasks in this process")))
}

async fn authorize(
    State(token): State<Option<Arc<Reloaded<SecretString>>>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = token else {
        let detail = "commands are off: set --admin-token-file or GARENNE_ADMIN_TOKEN_FILE to a file \
                      with a token, and send it as Authorization: Bearer";
        return Problem::new(StatusCode::FORBIDDEN, detail).into_response();
    };
    if is_authorized(&token, request.headers()) {
        return next.run(request).await;
    }
    let detail = "the admin token is missing or wrong: send it as Authorization: Bearer";
    Problem::new(StatusCode::UNAUTHORIZED, detail).into_response()
}

/// Whether a request has the token that the file holds now.
pub(super) fn is_authorized(token: &Reloaded<SecretString>, headers: &HeaderMap) -> bool {
    token.refresh();
    let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let given = given.and_then(bearer).unwrap_or_default();
    // A missing header compares as empty and never matches: an empty token cannot be configured.
    given.ct_eq(token.get().expose_secret().as_bytes()).into()
}

/// The credentials after `Bearer`, whose case does not matter (RFC 9110).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

async fn not_found(uri: Uri) -> Problem {
    let detail = format!(
        "no resource at {}; GET /livez, /readyz, /metrics or /pool, \
         POST /shutdown, /quiet, /resume, /tasks/{{id}}/stop or /groups/{{group}}/{{pause|resume|stop}}",
        uri.path()
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not allowed for {}; queries are GET, commands are POST", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

fn bad_request(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

fn accepted(body: Value) -> Response {
    (StatusCode::ACCEPTED, Json(body)).into_response()
}
