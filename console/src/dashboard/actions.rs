//! The actions of the page. They do what the same commands of the command line do.

use std::slice;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{app_state::App, problem::Problem};
use crate::{
    dead::{FilterArgs, MoveAction, Mover},
    directives::{WorkerCommand, send_command, set_group_paused, stop_tasks},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopTask {
    id: String,
}

pub(super) async fn stop_task(
    State(app): App,
    Json(StopTask { id }): Json<StopTask>,
) -> Result<Json<Value>, Problem> {
    tracing::info!(task = id, "stopping a task from the dashboard");
    stop_tasks(app.operator(), &[id], &[]).await?;
    Ok(Json(json!({ "directives": 1 })))
}

pub(super) async fn worker(
    State(app): App,
    Path((worker, word)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let command = match word.as_str() {
        "drain" => WorkerCommand::Shutdown { mode: None },
        "quiet" => WorkerCommand::Quiet,
        "resume" => WorkerCommand::Resume,
        _ => return Err(unknown(&word, "drain, quiet or resume")),
    };
    tracing::info!(worker, command = word, "sending a worker command from the dashboard");
    send_command(app.operator(), Some(&worker), &command).await?;
    Ok(Json(json!({ "worker": worker })))
}

pub(super) async fn group(
    State(app): App,
    Path((group, word)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    tracing::info!(group, command = word, "sending a group command from the dashboard");
    match word.as_str() {
        "pause" => set_group_paused(app.operator(), &group, true).await?,
        "resume" => set_group_paused(app.operator(), &group, false).await?,
        "stop" => stop_tasks(app.operator(), &[], slice::from_ref(&group)).await.map(drop)?,
        _ => return Err(unknown(&word, "pause, resume or stop")),
    }
    Ok(Json(json!({ "group": group })))
}

fn unknown(word: &str, expected: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("unknown command {word:?}, expected {expected}"))
}

/// The dead letters to replay: one by its id, or all of a kind and reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replay {
    id: Option<String>,
    kind: Option<String>,
    reason: Option<String>,
}

pub(super) async fn replay(
    State(app): App,
    Json(Replay { id, kind, reason }): Json<Replay>,
) -> Result<Json<Value>, Problem> {
    if id.is_none() && (kind.is_none() || reason.is_none()) {
        let detail = "expected id, or kind and reason";
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    let list = |one: &Option<String>| one.iter().cloned().collect::<Vec<_>>();
    let args = FilterArgs { id: list(&id), reason: list(&reason), ..FilterArgs::default() };
    let filter = args.filter()?.of_kind(kind.clone());
    let mut letters = app.dead_letters.lock().await;
    tracing::info!(id, kind, reason, "replaying dead letters from the dashboard");
    let moved = Mover::new(app.operator(), filter, MoveAction::Replay).run().await?;
    *letters = None;
    Ok(Json(json!({
        "replayed": moved.moved,
        "read": moved.read,
        "missed": moved.missed,
        "failures": moved.failures,
    })))
}
