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
    directives::{send_command, set_group_paused, stop_tasks},
    fleet::{unseen_group, unseen_task},
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

pub(super) async fn group(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Path((group, word)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    if !["pause", "resume", "stop"].contains(&word.as_str()) {
        return Err(unknown(&word, "pause, resume or stop"));
    }
    let remark = unseen_group(&app.monitor.workers(), &group);
    command(app, requester, format!("group.{word}"), json!({ "group": group }), move |app| {
        Box::pin(async move {
            match word.as_str() {
                "stop" => stop_tasks(app.operator(), &[], slice::from_ref(&group)).await.map(drop)?,
                word => set_group_paused(app.operator(), &group, word == "pause").await?,
            }
            Ok(json!({ "group": group, "remark": remark }))
        })
    })
    .await
}

fn unknown(word: &str, expected: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("unknown command {word:?}, expected {expected}"))
}
