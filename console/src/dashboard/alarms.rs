//! The open alarms that the page shows, and what operators do with them.

use std::time::{Duration, SystemTime};

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use garenne_protocol::task::epoch_ms;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{actions::command, app_state::App, problem::Problem, user::Requester};
use crate::alarms::{AlarmAction, AlarmFilter};

/// Limit on the alarms listed, newest first.
const MAX_LISTED: i64 = 500;

/// The open alarms. `configured` is false if the dashboard has no database.
pub(super) async fn list(State(app): App) -> Result<Json<Value>, Problem> {
    let Some(database) = &app.database else {
        return Ok(Json(json!({ "configured": false, "alarms": [] })));
    };
    let unavailable = |failure| Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{failure}"));
    let store = database.alarms().await.map_err(unavailable)?;
    let filter = AlarmFilter { open: true, limit: MAX_LISTED + 1, ..AlarmFilter::default() };
    let mut alarms = store.list(&filter).await.map_err(unavailable)?;
    let more = alarms.len() as i64 > MAX_LISTED;
    alarms.truncate(MAX_LISTED as usize);
    Ok(Json(json!({
        "configured": true,
        "at": epoch_ms(SystemTime::now()),
        "more": more,
        "alarms": alarms,
    })))
}

/// The body of a change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    #[serde(default, rename = "for", with = "humantime_serde")]
    time: Option<Duration>,
}

/// Acknowledges or snoozes an alarm, or ends a snooze.
pub(super) async fn change(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Path((alarm, word)): Path<(String, String)>,
    Json(Change { time }): Json<Change>,
) -> Result<Json<Value>, Problem> {
    let action = match (word.as_str(), time) {
        ("ack", None) => AlarmAction::Acknowledge,
        ("snooze", Some(time)) => AlarmAction::Snooze(time),
        ("unsnooze", None) => AlarmAction::Unsnooze,
        ("ack" | "unsnooze", Some(_)) => return Err(Problem::bad_request("for: only allowed with snooze")),
        ("snooze", None) => return Err(Problem::bad_request("expected for, such as \"1h\"")),
        _ => {
            let problem = format!("unknown command {word:?}, expected ack, snooze or unsnooze");
            return Err(Problem::new(StatusCode::NOT_FOUND, problem));
        }
    };
    let arguments =
        json!({ "alarm": alarm, "for": time.map(|time| humantime::format_duration(time).to_string()) });
    let by = requester.name.clone();
    command(app, requester, format!("alarm.{word}"), arguments, move |app| {
        Box::pin(async move {
            app.alarms().await?.change(&alarm, action, &by).await?;
            Ok(json!({ "alarm": alarm }))
        })
    })
    .await
}
