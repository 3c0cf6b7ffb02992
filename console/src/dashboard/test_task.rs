//! Publishes one task for an operator who wants to see whether its kind works.

use std::time::SystemTime;

use axum::{Extension, Json, extract::State, http::StatusCode};
use garenne_amqp::{Message, Publisher, PublisherConfig, Target};
use garenne_common::exit::{Exit, Failure};
use garenne_operator::operator::Operator;
use garenne_protocol::task::{ContentType, Kind, NewTask};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::{actions::command, app_state::App, problem::Problem, user::Requester};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestTask {
    kind: String,
    /// JSON, as it was written.
    payload: String,
}

/// The task of a request, and the lane that takes it.
fn made(operator: &Operator, TestTask { kind, payload }: TestTask) -> Result<(NewTask, String), String> {
    let kind = Kind::parse(&kind).map_err(|error| format!("kind: {error}"))?;
    serde_json::from_str::<IgnoredAny>(&payload)
        .map_err(|error| format!("payload: it is not JSON: {error}"))?;
    let Some(lane) = operator.settings.lanes.taking(kind.as_str()) else {
        return Err(format!(
            "unroutable: no lane of the settings (--config) takes the kind {}; nothing was published",
            kind.as_str()
        ));
    };
    Ok((NewTask::new(kind, ContentType::Json, payload.into_bytes()).keyed(), lane.to_owned()))
}

/// Publishes a task and returns its id and its lane.
pub(super) async fn publish(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Json(request): Json<TestTask>,
) -> Result<Json<Value>, Problem> {
    let refused = |detail| Problem::new(StatusCode::BAD_REQUEST, detail);
    let (task, lane) = made(app.operator(), request).map_err(refused)?;
    let (id, kind) = (task.id.as_str().to_owned(), task.kind.as_str().to_owned());
    let record = json!({ "id": id, "kind": kind, "bytes": task.body.len() });
    command(app, requester, "task.publish", record, move |app| {
        Box::pin(async move {
            send(app.operator(), &task).await?;
            Ok(json!({ "id": id, "kind": kind, "lane": lane }))
        })
    })
    .await
}

/// Publishes as any client does, so that bindings are tested too.
async fn send(operator: &Operator, task: &NewTask) -> Result<(), Failure> {
    let publisher = Publisher::new(operator.broker.clone(), PublisherConfig::default());
    let target = Target::exchange(operator.names.tasks(), task.kind.as_str().to_owned());
    let properties = task.properties(SystemTime::now());
    let sent = publisher.publish(Message { target, properties, body: task.body.clone().into() }).await;
    publisher.close().await;
    sent.map_err(|error| Failure::new(Exit::Failed, error))
}

#[cfg(test)]
mod tests {
    use garenne_operator::settings::FleetSettings;

    use super::*;

    fn told(operator: &Operator, kind: &str, payload: &str) -> Result<String, String> {
        let task = TestTask { kind: kind.to_owned(), payload: payload.to_owned() };
        made(operator, task).map(|(task, lane)| format!("{} to {lane}", task.kind.as_str()))
    }

    #[test]
    fn a_test_task_names_its_lane_or_why_it_has_none() {
        let mut settings = FleetSettings::default();
        let all = Operator::new(settings.clone()).unwrap();
        assert_eq!(told(&all, "reading.process", "{}"), Ok("reading.process to fast".to_owned()));
        assert_eq!(
            told(&all, "import.row", "[1]"),
            Ok("import.row to default".to_owned()),
            "the catch-all lane"
        );
        assert!(told(&all, "a b", "{}").unwrap_err().starts_with("kind: "));
        let problem = "payload: it is not JSON: EOF while parsing an object at line 1 column 1";
        assert_eq!(told(&all, "a", "{"), Err(problem.to_owned()));
        let bound = settings.lanes.defined().filter(|(_, lane)| !lane.catch_all);
        settings.lanes = bound.map(|(name, lane)| (name.to_owned(), lane.clone())).collect();
        let problem = told(&Operator::new(settings).unwrap(), "import.row", "{}").unwrap_err();
        assert!(problem.starts_with("unroutable: no lane"), "{problem}");
    }
}
