//! The actions of the page. They do what the same commands of the command line do, and leave the same records.

use std::{slice, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use futures_util::future::BoxFuture;
use garenne_common::{
    exit::{Exit, Failure},
    supervise,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    app_state::{App, AppState},
    problem::Problem,
    user::Requester,
};
use crate::{
    audit_log::audited,
    directives::{send_command, stop_tasks},
    fleet::{unseen_group, unseen_task},
    pause::Paused,
    worker_command::WorkerCommand,
};

/// Runs a command to its end, also if the client does not wait for it, and leaves its records with the answer as its
/// result.
pub(super) async fn command(
    app: Arc<AppState>,
    requester: Requester,
    name: impl Into<String>,
    arguments: Value,
    run: impl for<'a> FnOnce(&'a AppState) -> BoxFuture<'a, Result<Value, Failure>> + Send + 'static,
) -> Result<Json<Value>, Problem> {
    let (answer, answered) = oneshot::channel();
    let (name, actor) = (name.into(), requester.actor());
    let running = supervise::isolated("dashboard command", async move {
        let done = audited(app.operator(), actor, &name, arguments, run(&app), Value::clone).await;
        // The client may have gone away.
        let _ = answer.send(done);
    });
    running.spawn().detach();
    let panicked = || Failure::new(Exit::Failed, "the command has failed; the log says why");
    Ok(Json(answered.await.unwrap_or_else(|_| Err(panicked()))?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopTask {
    id: String,
}

pub(super) async fn stop_task(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Json(StopTask { id }): Json<StopTask>,
) -> Result<Json<Value>, Problem> {
    let remark = unseen_task(&app.monitor.workers(), &id);
    command(app, requester, "task.stop", json!({ "ids": [id] }), move |app| {
        Box::pin(async move {
            let directives = stop_tasks(app.operator(), &[id], &[]).await?;
            Ok(json!({ "directives": directives, "remark": remark }))
        })
    })
    .await
}

pub(super) async fn worker(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Path((worker, word)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let order = match word.as_str() {
        "drain" => WorkerCommand::Shutdown { mode: None },
        "quiet" => WorkerCommand::Quiet,
        "resume" => WorkerCommand::Resume,
        _ => return Err(unknown(&word, "drain, quiet or resume")),
    };
    command(app, requester, format!("worker.{word}"), json!({ "worker": worker }), move |app| {
        Box::pin(async move {
            send_command(app.operator(), Some(&worker), &order).await?;
            Ok(json!({ "worker": worker }))
        })
    })
    .await
}

pub(super) async fn stop_group(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Path(group): Path<String>,
) -> Result<Json<Value>, Problem> {
    let remark = unseen_group(&app.monitor.workers(), &group);
    command(app, requester, "group.stop", json!({ "group": group }), move |app| {
        Box::pin(async move {
            stop_tasks(app.operator(), &[], slice::from_ref(&group)).await?;
            Ok(json!({ "group": group, "remark": remark }))
        })
    })
    .await
}

/// Pauses or resumes a group, a lane or a kind.
pub(super) async fn pause(
    what: Paused,
    app: Arc<AppState>,
    requester: Requester,
    (name, word): (String, String),
) -> Result<Json<Value>, Problem> {
    if !["pause", "resume"].contains(&word.as_str()) {
        return Err(unknown(&word, "pause or resume"));
    }
    let (noun, remark) = (what.noun(), what.unseen(&app.monitor.workers(), &name));
    command(app, requester, format!("{noun}.{word}"), json!({ noun: name }), move |app| {
        Box::pin(async move {
            what.set(app.operator(), &name, word == "pause").await?;
            Ok(json!({ noun: name, "remark": remark }))
        })
    })
    .await
}

fn unknown(word: &str, expected: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("unknown command {word:?}, expected {expected}"))
}
