//! The routes of the dashboard.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State, rejection::QueryRejection},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use garenne_common::telemetry::admin::{own_hosts_only, problems_only};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    access::Credentials,
    actions, alarms,
    app_state::{App, AppState},
    dead_letters, feed, jobs, page,
    problem::Problem,
    read_api, tasks, test_task,
    user::Requester,
};
use crate::{
    accounts::Role,
    diagnose::verdict,
    monitor::NOT_KNOWN,
    pause::Paused,
    scale::{self, Goal},
};

/// The page loads nothing from other hosts, runs no inline script, and cannot be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Request bodies are ids or a token.
const MAX_BODY: usize = 64 * 1024;

/// Those with a payload: 64 KiB, each byte of which may be an escape of six.
const MAX_PAYLOAD_BODY: usize = 6 * MAX_BODY;

pub(super) fn router(app: Arc<AppState>) -> Router {
    let commands = Router::new()
        .route("/api/tasks/stop", post(actions::stop_task))
        .route("/api/tasks/run", post(tasks::run_now))
        .route("/api/workers/{worker}/{command}", post(actions::worker))
        .route("/api/groups/{group}/stop", post(actions::stop_group))
        .route("/api/groups/{group}/{command}", pausing(Paused::Group))
        .route("/api/lanes/{lane}/{command}", pausing(Paused::Lane))
        .route("/api/kinds/{kind}/{command}", pausing(Paused::Kind))
        .route("/api/dead/replay", post(jobs::replay))
        .route("/api/dead/drop", post(jobs::remove))
        .route("/api/dead/edit", post(dead_letters::edit).layer(DefaultBodyLimit::max(MAX_PAYLOAD_BODY)))
        .route("/api/tasks", post(test_task::publish).layer(DefaultBodyLimit::max(MAX_PAYLOAD_BODY)))
        .route("/api/jobs/{job}/stop", post(jobs::stop))
        .route("/api/alarms/{alarm}/{command}", post(alarms::change))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), commanding));
    let views = Router::new()
        .route("/v1/problems", get(problems))
        .route("/v1/devices", get(read_api::devices))
        .route("/v1/lanes/history", get(read_api::lane_history))
        .route("/v1/readings", get(read_api::readings))
        .route("/api/now", get(async |State(app): App| Json(app.monitor.now())))
        .route("/api/history", get(async |State(app): App| Json(app.monitor.history())))
        .route("/api/events", get(feed::events))
        .route("/api/dead", get(dead_letters::list))
        .route("/api/jobs", get(jobs::list))
        .route("/api/jobs/{job}", get(jobs::show))
        .route("/api/alarms", get(alarms::list))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), viewing));
    // Payloads are only for people who are logged in, also where viewing needs no login.
    let payloads = Router::new()
        .route("/api/dead/letter", get(dead_letters::letter))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), logged_in));
    let queues = Router::new()
        .route("/v1/lanes/{lane}/tasks", get(tasks::list))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), looking));
    // Without a login: files that everybody may have, and numbers for machines, which cannot log in.
    let open = Router::new()
        .route("/", get(page::index))
        .route("/{file}", get(page::file))
        .route("/devices", get(page::devices))
        .route("/tasks", get(page::tasks))
        .route("/livez", get(async || "ok\n"))
        .route("/metrics", get(metrics))
        .route("/scale/{lane}", get(replicas))
        .route("/api/session", get(session))
        .route("/api/login", post(login))
        .route("/api/logout", post(logout));
    let router = open
        .merge(views)
        .merge(payloads)
        .merge(queues)
        .merge(commands)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::clone(&app));
    let router = problems_only(router).layer(middleware::map_response(secured));
    own_hosts_only(router, app.operator().settings.common.allowed_hosts.clone())
}

/// The commands that pause and resume.
fn pausing(what: Paused) -> MethodRouter<Arc<AppState>> {
    post(move |State(app): App, Extension(who): Extension<Requester>, Path(names): Path<(String, String)>| {
        actions::pause(what, app, who, names)
    })
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

async fn viewing(State(app): App, request: Request, next: Next) -> Result<Response, Problem> {
    app.access.may_view(request.extensions(), request.headers())?;
    Ok(next.run(request).await)
}

/// The header with the CSRF token keeps other sites from reading the queue through a person's browser.
async fn logged_in(State(app): App, request: Request, next: Next) -> Result<Response, Problem> {
    app.access.may_act(Role::Viewer, request.extensions(), request.headers())?;
    Ok(next.run(request).await)
}

/// A look takes messages from a queue and returns them, which the broker may count.
async fn looking(State(app): App, mut request: Request, next: Next) -> Result<Response, Problem> {
    let requester = app.access.may_act(Role::Viewer, request.extensions(), request.headers())?;
    requester.check_look()?;
    if app.access.is_read_only() {
        let detail =
            "this dashboard is read-only: a list of tasks takes messages from a queue and returns them";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    request.extensions_mut().insert(requester);
    Ok(next.run(request).await)
}

/// Passes on who gives the command.
async fn commanding(State(app): App, mut request: Request, next: Next) -> Result<Response, Problem> {
    let requester = app.access.may_act(Role::Operator, request.extensions(), request.headers())?;
    request.extensions_mut().insert(requester);
    Ok(next.run(request).await)
}

async fn login(
    State(app): App,
    extensions: Extensions,
    headers: HeaderMap,
    Json(given): Json<Credentials>,
) -> Result<Response, Problem> {
    let cookie = app.access.login(&extensions, &headers, given).await?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

async fn logout(State(app): App, extensions: Extensions, headers: HeaderMap) -> Result<Response, Problem> {
    app.access.may_act(Role::Viewer, &extensions, &headers)?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, app.access.logout(&headers))]).into_response())
}

async fn session(State(app): App, extensions: Extensions, headers: HeaderMap) -> Response {
    match app.access.session(&extensions, &headers) {
        (session, Some(cookie)) => ([(header::SET_COOKIE, cookie)], Json(session)).into_response(),
        (session, None) => Json(session).into_response(),
    }
}

/// What is wrong with the fleet, the worst first. The status is 200 in any case.
async fn problems(State(app): App) -> Json<Value> {
    let problems = app.monitor.problems();
    let verdict = problems.as_deref().map_or_else(|| NOT_KNOWN.to_owned(), verdict);
    Json(json!({ "verdict": verdict, "problems": problems.unwrap_or_default() }))
}

async fn metrics(State(app): App) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.encode())
}

/// Query parameters that override the settings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleQuery {
    #[serde(default, with = "humantime_serde")]
    objective: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    window: Option<Duration>,
    min: Option<u32>,
    max: Option<u32>,
    utilization: Option<f64>,
}

async fn replicas(
    State(app): App,
    Path(lane): Path<String>,
    query: Result<Query<ScaleQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query?;
    let set = &app.scale;
    let goal = Goal {
        objective: query.objective.unwrap_or(set.objective),
        window: query.window.unwrap_or(set.window),
        min: query.min.unwrap_or(set.min),
        max: query.max.unwrap_or(set.max),
        utilization: query.utilization.unwrap_or(set.utilization),
    };
    goal.validate().map_err(|invalid| {
        Problem::bad_request(format!(
            "{} = {} is refused: {}",
            invalid.setting, invalid.value, invalid.problem
        ))
    })?;
    let unknown = |problem| Problem::new(StatusCode::SERVICE_UNAVAILABLE, problem);
    let Some((replicas, sample)) = app.monitor.replicas(&lane, &goal).map_err(unknown)? else {
        let names: Vec<_> = app.operator().settings.lanes.defined().map(|(name, _)| name).collect();
        let detail = format!("unknown lane {lane:?}, the lanes are {}", names.join(", "));
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    Ok(Json(json!({
        "lane": lane,
        "replicas": replicas,
        "needed_now": scale::needed(&sample.load, &goal),
        "load": sample.load,
        "backlog_seconds": sample.load.backlog_seconds,
        "goal": goal,
    })))
}

async fn not_found(uri: Uri) -> Problem {
    let detail = format!("no route {}; try /, /metrics, /scale/{{lane}} or /api/now", uri.path());
    Problem::new(StatusCode::NOT_FOUND, detail)
}
