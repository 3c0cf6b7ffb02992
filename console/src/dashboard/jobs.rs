//! Replays and drops of dead letters as jobs: started, watched and stopped.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use futures_util::FutureExt;
use garenne_common::{
    exit::{Exit, Failure},
    supervise,
};
use garenne_operator::dead::HeldQueue;
use garenne_protocol::audit::AuditActor;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    actions::command,
    app_state::{App, AppState},
    job::Job,
    letter_filter::LetterFilter,
    problem::Problem,
    user::Requester,
};
use crate::{
    audit_log::audited,
    dead::{Conditions, Filter, MoveAction, MoveReport, Mover, audit_name},
};

/// Limit on the ids of a request.
const MAX_IDS: usize = 1_000;

/// The letters to move: some by their ids, or all that a filter matches.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selection {
    #[serde(default)]
    ids: Vec<String>,
    kind: Option<String>,
    reason: Option<String>,
    group: Option<String>,
    error_like: Option<String>,
    text: Option<String>,
}

impl Selection {
    /// The filter of a walk, and the selection as records have it.
    fn filter(self) -> Result<(Filter, Value), Problem> {
        let Self { ids, kind, reason, group, error_like, text } = self;
        let filter = LetterFilter { kind, reason, group, error_like, text };
        match (ids.is_empty(), filter.is_empty()) {
            (true, false) => Ok((filter.filter()?, json!(filter))),
            (false, true) if ids.len() > MAX_IDS => {
                Err(Problem::bad_request(format!("ids: {} are given, the limit is {MAX_IDS}", ids.len())))
            }
            (false, true) => {
                let record = json!({ "ids": ids });
                Ok((Conditions { id: ids, ..Conditions::default() }.into(), record))
            }
            _ => {
                Err(Problem::bad_request("expected ids, or some of kind, reason, group, error_like and text"))
            }
        }
    }
}

/// Starts to publish letters as tasks again.
pub(super) async fn replay(
    app: App,
    requester: Extension<Requester>,
    Json(selection): Json<Selection>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    start(&app, &requester, selection, MoveAction::Replay)
}

/// Starts to remove letters permanently.
pub(super) async fn remove(
    app: App,
    requester: Extension<Requester>,
    Json(selection): Json<Selection>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    start(&app, &requester, selection, MoveAction::Drop)
}

fn start(
    app: &Arc<AppState>,
    requester: &Requester,
    selection: Selection,
    action: MoveAction,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let (filter, record) = selection.filter()?;
    let job = app.jobs.add(Job::new(action, record.clone(), &requester.name))?;
    let begun = job.view();
    let running = run(Arc::clone(app), job, filter, record, requester.actor());
    supervise::isolated("dashboard job", running).spawn().detach();
    Ok((StatusCode::ACCEPTED, Json(begun)))
}

/// Ends a job that its task left without a result, because the task panicked.
struct Unfinished(Arc<Job>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.end(Err(Failure::new(Exit::Failed, "the job has failed; the log says why")));
    }
}

async fn run(app: Arc<AppState>, job: Arc<Job>, filter: Filter, mut record: Value, actor: AuditActor) {
    let unfinished = Unfinished(job);
    let job = &unfinished.0;
    record["job"] = job.id.clone().into();
    // Jobs run in the order of their requests. One that is stopped before its turn is on record too.
    let turn = job.stop.run_until_cancelled(app.walk.lock()).await;
    let moving = async {
        if turn.is_none() {
            return Ok(MoveReport { interrupted: true, ..MoveReport::default() });
        }
        job.begin();
        let all = Mover::new(app.operator(), HeldQueue::Dead, filter, job.action);
        let (stop, progress) = (job.stop.clone(), Arc::clone(&job.progress));
        // Boxed, because the compiler checks the whole future at once otherwise, which is too deep for it.
        let moved = Mover { stop, progress, ..all }.run().boxed().await;
        app.forget_listed();
        moved
    };
    let name = audit_name(HeldQueue::Dead, job.action);
    job.end(audited(app.operator(), actor, name, record, moving, MoveReport::record).await);
}

/// All jobs, newest first.
pub(super) async fn list(State(app): App) -> Json<Value> {
    Json(json!({ "jobs": app.jobs.view() }))
}

pub(super) async fn show(State(app): App, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    Ok(Json(app.jobs.get(&id)?.view()))
}

/// Stops a job: it moves nothing more, and completes what is in flight.
pub(super) async fn stop(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let job = app.jobs.get(&id)?;
    let state = job.state();
    if state.has_ended() {
        return Err(Problem::new(StatusCode::CONFLICT, format!("job {id} has ended: it is {state}")));
    }
    command(app, requester, "job.stop", json!({ "job": id }), move |_| {
        Box::pin(async move {
            job.stop.cancel();
            Ok(job.view())
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(body: Value) -> Result<(Filter, Value), Problem> {
        serde_json::from_value::<Selection>(body).unwrap().filter()
    }

    #[test]
    fn a_selection_is_ids_or_a_filter() {
        let (ids, record) = filter(json!({"ids": ["a", "b"]})).unwrap();
        assert_eq!(
            (ids.conditions.id, record),
            (vec!["a".to_owned(), "b".to_owned()], json!({"ids": ["a", "b"]}))
        );
        let given = json!({"kind": "#", "reason": "stopped", "group": "g", "error_like": "", "text": "x"});
        let (all, record) = filter(given.clone()).unwrap();
        let conditions = &all.conditions;
        assert_eq!((conditions.exact_kind.as_deref(), conditions.kind.len()), (Some("#"), 0));
        assert_eq!(
            (&all.reason[..], &conditions.group[..]),
            (&["stopped".to_owned()][..], &["g".to_owned()][..])
        );
        assert_eq!((all.error_like.as_deref(), all.text.as_deref(), record), (Some(""), Some("x"), given));
        for refused in [
            json!({}),
            json!({"ids": []}),
            json!({"ids": ["a"], "kind": "k"}),
            json!({"kind": "k", "reason": "none"}),
            json!({"ids": vec!["a"; MAX_IDS + 1]}),
        ] {
            assert_eq!(filter(refused.clone()).unwrap_err().status(), StatusCode::BAD_REQUEST, "{refused}");
        }
        let mistyped = serde_json::from_value::<Selection>(json!({"kind": "k", "errors": "e"}));
        assert!(mistyped.is_err(), "a condition that is not known must not be left out");
    }

    #[test]
    fn a_job_whose_task_panics_has_failed() {
        let job = Arc::new(Job::new(MoveAction::Replay, Value::Null, "anna"));
        drop(Unfinished(Arc::clone(&job)));
        assert_eq!(job.view()["state"], "failed");
    }
}
