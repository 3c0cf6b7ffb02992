//! What the dashboard answers.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use garenne_common::telemetry::Metrics;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{
    actions::{self, Letters},
    answer::Refusal,
    page,
    session::{Sessions, same_site},
    stream::{self, Feed},
};
use crate::{
    scale::Goal,
    scope::{Point, Scope},
};

/// Everything a request needs.
pub(super) struct Desk {
    pub(super) scope: Arc<Scope>,
    pub(super) metrics: Metrics,
    pub(super) sessions: Sessions,
    pub(super) feed: Feed,
    /// One walk over the dead letters at a time, and what the last one saw.
    pub(super) letters: Mutex<Letters>,
}

impl Desk {
    pub(super) fn new(scope: Arc<Scope>, metrics: Metrics, token: Option<SecretString>) -> Self {
        let feed = Feed::start(Arc::clone(&scope));
        Self { scope, metrics, sessions: Sessions::new(token), feed, letters: Mutex::default() }
    }
}

/// Nothing comes from anywhere else, nothing runs that is not one of these files, and nobody frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Bodies are an id or a token.
const LARGEST_BODY: usize = 16 * 1024;

pub(super) fn router(desk: Arc<Desk>) -> Router {
    let changes = Router::new()
        .route("/api/logout", post(logout))
        .route("/api/tasks/stop", post(actions::stop_task))
        .route("/api/workers/{worker}/{command}", post(actions::worker))
        .route("/api/groups/{group}/{command}", post(actions::group))
        .route("/api/dead/replay", post(actions::replay))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&desk), logged_in));
    Router::new()
        .route("/", get(page::index))
        .route("/{file}", get(page::file))
        .route("/livez", get(async || "ok\n"))
        .route("/metrics", get(metrics))
        .route("/scale/{lane}", get(scale))
        .route("/api/now", get(now))
        .route("/api/history", get(history))
        .route("/api/events", get(stream::events))
        .route("/api/dead", get(actions::dead))
        .route("/api/session", get(session))
        .route("/api/login", post(login))
        .merge(changes)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(middleware::map_response(secured))
        .with_state(desk)
}

async fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn logged_in(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    match desk.sessions.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

async fn login(
    State(desk): State<Arc<Desk>>,
    headers: HeaderMap,
    Json(given): Json<Login>,
) -> Result<Response, Refusal> {
    same_site(&headers)?;
    let cookie = desk.sessions.login(given.token.trim())?;
    tracing::info!("somebody logged in to the dashboard");
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

async fn logout(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Response {
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, desk.sessions.logout(&headers))]).into_response()
}

async fn session(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Json<Value> {
    Json(json!({ "possible": desk.sessions.possible(), "csrf": desk.sessions.csrf(&headers) }))
}

async fn metrics(State(desk): State<Arc<Desk>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], desk.metrics.encode())
}

async fn now(State(desk): State<Arc<Desk>>) -> Json<crate::scope::Now> {
    Json(desk.scope.now())
}

async fn history(State(desk): State<Arc<Desk>>) -> Json<Vec<Point>> {
    Json(desk.scope.history())
}

/// What a request may ask for instead of the settings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    #[serde(default, with = "humantime_serde")]
    objective: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    window: Option<Duration>,
    min: Option<u32>,
    max: Option<u32>,
    utilization: Option<f64>,
}

async fn scale(
    State(desk): State<Arc<Desk>>,
    Path(lane): Path<String>,
    wish: Result<Query<Wish>, QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let Query(wish) = wish.map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    let set = &desk.scope.operator.settings.scale;
    let goal = Goal {
        objective: wish.objective.unwrap_or(set.objective),
        window: wish.window.unwrap_or(set.window),
        min: wish.min.unwrap_or(set.min),
        max: wish.max.unwrap_or(set.max),
        utilization: wish.utilization.unwrap_or(set.utilization),
    };
    goal.validate().map_err(|invalid| {
        let detail = format!("{} = {} is refused: {}", invalid.setting, invalid.value, invalid.problem);
        Refusal::new(StatusCode::BAD_REQUEST, detail)
    })?;
    let unknown = |problem| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, problem);
    let Some((replicas, sample)) = desk.scope.replicas(&lane, &goal).map_err(unknown)? else {
        let names: Vec<_> = desk.scope.operator.settings.lanes.defined().map(|(name, _)| name).collect();
        let detail = format!("no lane is called {lane:?}, there are {}", names.join(", "));
        return Err(Refusal::new(StatusCode::NOT_FOUND, detail));
    };
    Ok(Json(json!({
        "lane": lane,
        "replicas": replicas,
        "needed_now": crate::scale::needed(&sample.load, &goal),
        "load": sample.load,
        "backlog_seconds": sample.backlog_seconds,
        "goal": goal,
    })))
}

async fn not_found(uri: Uri) -> Refusal {
    let detail = format!("nothing is at {}; GET /, /metrics, /scale/{{lane}} or /api/now", uri.path());
    Refusal::new(StatusCode::NOT_FOUND, detail)
}
