//! The dead letters that the page shows.

use std::{
    cmp::Reverse,
    time::{Duration, SystemTime},
};

use axum::{Json, extract::State};
use garenne_common::exit::Failure;
use garenne_protocol::task::epoch_ms;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{app_state::App, problem::Problem};
use crate::{
    dead::{self, DeadLetter},
    operator::Operator,
};

/// Limit on the letters read, oldest first. A walk holds every letter that it reads.
const MAX_READ: u64 = 1_000;
/// Limit on the letters listed, newest first. Counts by kind and reason include the others.
const MAX_LISTED: usize = 200;
/// How long a result is served again.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The letters by kind and reason, and the newest ones without their payloads.
pub(super) async fn list(State(app): App) -> Result<Json<Value>, Problem> {
    let mut last = app.dead_letters.lock().await;
    if let Some((at, list)) = &*last
        && at.elapsed() < MAX_AGE
    {
        return Ok(Json(list.clone()));
    }
    let list = read(app.operator()).await?;
    *last = Some((Instant::now(), list.clone()));
    Ok(Json(list))
}

async fn read(operator: &Operator) -> Result<Value, Failure> {
    let keep = |letter: DeadLetter, _| Some(letter);
    let (mut letters, read) = dead::read(operator, MAX_READ, &ProgressBar::hidden(), keep).await?;
    let groups: Vec<_> = dead::counts(&letters)
        .into_iter()
        .map(|((kind, reason), count)| json!({ "kind": kind, "reason": reason, "count": count }))
        .collect();
    letters.sort_by_key(|letter| Reverse(letter.died_at));
    letters.truncate(MAX_LISTED);
    Ok(json!({
        "at": epoch_ms(SystemTime::now()),
        "read": read,
        "more": read >= MAX_READ,
        "groups": groups,
        "letters": letters,
    }))
}
