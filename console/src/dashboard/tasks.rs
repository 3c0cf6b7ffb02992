//! The tasks that wait in a lane or for their time, and the command that lets one of them run now.
//!
//! To list them, messages are taken from queues and returned. So it needs a right of its own.

use axum::{
    Extension, Json,
    extract::{Path, Query, State, rejection::QueryRejection},
};
use garenne_common::{
    exit::{Exit, Failure},
    supervise,
};
use garenne_operator::queues::LookLimits;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    actions,
    app_state::{App, AppState},
    problem::Problem,
    user::Requester,
};
use crate::{
    fleet::Pauses,
    task::{self, TaskState},
};

/// Tasks of a list.
const MOST: usize = 1_000;
/// A queue with more messages is not looked at: all of them are taken, and workers miss them meanwhile.
const MAX_READ: u64 = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    state: TaskState,
}

/// The first tasks of a lane in a state.
pub(super) async fn list(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Path(lane): Path<String>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(ListQuery { state }) = query?;
    tracing::info!(name = requester.name, address = %requester.address, lane, ?state, "tasks are listed");
    let (answer, answered) = oneshot::channel();
    // To its end, also if the client does not wait for it: an interrupted look changes the order of a queue.
    let looking = supervise::isolated("list of tasks", async move {
        let _look = app.look.lock().await;
        let listed = task::list(app.operator(), Some(&lane), state, limits(&app, &lane), MOST).await;
        // The client may have gone away.
        let _ = answer.send(listed);
    });
    looking.spawn().detach();
    let panicked = || Failure::new(Exit::Failed, "the list has failed; the log says why");
    let (total, tasks) = answered.await.unwrap_or_else(|_| Err(panicked()))?;
    Ok(Json(json!({ "total": total, "more": total > tasks.len(), "tasks": tasks })))
}

/// The broker counts a consumer of a paused lane as long as its worker runs tasks of the lane.
fn limits(app: &AppState, lane: &str) -> LookLimits {
    let is_paused = Pauses::of(&app.monitor.workers()).lanes.contains_key(lane);
    LookLimits { max: MAX_READ, despite_consumers: is_paused }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunNow {
    id: String,
    lane: String,
}

/// Moves a task from its retry queue to its lane.
pub(super) async fn run_now(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Json(RunNow { id, lane }): Json<RunNow>,
) -> Result<Json<Value>, Problem> {
    requester.check_look()?;
    actions::command(app, requester, task::RUN_NOW, json!({ "id": id, "lane": lane }), move |app| {
        Box::pin(async move {
            let _look = app.look.lock().await;
            let limits = LookLimits { max: MAX_READ, despite_consumers: false };
            let lane = task::run_now(app.operator(), Some(&lane), &id, limits).await?;
            Ok(json!({ "lane": lane }))
        })
    })
    .await
}
