//! What an operator can do from the page: the same orders that the command line gives.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use garenne_common::exit::Failure;
use garenne_protocol::task::epoch_ms;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{answer::Refusal, routes::Desk};
use crate::{
    dead::{FilterArgs, Letter, Mover, Order, Walk},
    operator::Operator,
    orders::{self, Command},
};

/// Letters looked at for the page, the oldest ones; a walk holds all that it looks at.
const MOST_LETTERS: u64 = 1_000;
/// Letters shown one by one.
const MOST_SHOWN: usize = 200;
/// A look this young is shown again.
const YOUNG: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopTask {
    id: String,
}

pub(super) async fn stop_task(
    State(desk): State<Arc<Desk>>,
    Json(StopTask { id }): Json<StopTask>,
) -> Result<Json<Value>, Refusal> {
    tracing::info!(task = id, "told to stop from the dashboard");
    orders::stop_orders(&desk.scope.operator, &[id], &[]).await?;
    Ok(Json(json!({ "ordered": 1 })))
}

pub(super) async fn worker(
    State(desk): State<Arc<Desk>>,
    Path((worker, word)): Path<(String, String)>,
) -> Result<Json<Value>, Refusal> {
    let command = match word.as_str() {
        "drain" => Command::Shutdown { mode: None },
        "quiet" => Command::Quiet,
        "resume" => Command::Resume,
        _ => return Err(unknown(&word, "drain, quiet or resume")),
    };
    tracing::info!(worker, command = word, "commanded from the dashboard");
    orders::tell(&desk.scope.operator, Some(&worker), &command).await?;
    Ok(Json(json!({ "told": worker })))
}

pub(super) async fn group(
    State(desk): State<Arc<Desk>>,
    Path((group, word)): Path<(String, String)>,
) -> Result<Json<Value>, Refusal> {
    let operator = &desk.scope.operator;
    tracing::info!(group, command = word, "commanded from the dashboard");
    match word.as_str() {
        "pause" => orders::pause_order(operator, &group, true).await?,
        "resume" => orders::pause_order(operator, &group, false).await?,
        "stop" => orders::stop_orders(operator, &[], std::slice::from_ref(&group)).await.map(drop)?,
        _ => return Err(unknown(&word, "pause, resume or stop")),
    }
    Ok(Json(json!({ "group": group })))
}

fn unknown(word: &str, expected: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("command {word:?} is unknown, expected {expected}"))
}

/// What to replay: one letter, or all of a kind with a reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replay {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    reason: Option<String>,
}

pub(super) async fn replay(
    State(desk): State<Arc<Desk>>,
    Json(Replay { id, kind, reason }): Json<Replay>,
) -> Result<Json<Value>, Refusal> {
    if id.is_none() && (kind.is_none() || reason.is_none()) {
        let detail = "expected id, or kind and reason";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, detail));
    }
    let list = |one: &Option<String>| one.iter().cloned().collect::<Vec<_>>();
    let args = FilterArgs { id: list(&id), reason: list(&reason), ..FilterArgs::default() };
    let mut filter = args.filter().map_err(Failure::from)?;
    // The kind of a letter that the page shows, which is no pattern even if it looks like one.
    if let Some(kind) = kind.clone() {
        filter = filter.of_kind(kind);
    }
    // Two walks at once would each see only what the other does not hold.
    let mut letters = desk.letters.lock().await;
    tracing::info!(id, kind, reason, "replayed from the dashboard");
    let mover = Mover {
        operator: &desk.scope.operator,
        filter,
        order: Order::Replay,
        limit: None,
        rate: None,
        hold: Mover::HOLD,
        stop: CancellationToken::new(),
    };
    let moved = mover.run().await?;
    letters.taken = None;
    Ok(Json(json!({
        "replayed": moved.moved,
        "looked": moved.looked,
        "missed": moved.missed,
        "failures": moved.failures,
    })))
}

/// The dead letters as last looked at.
#[derive(Default)]
pub(super) struct Letters {
    taken: Option<(Instant, Value)>,
}

#[derive(Serialize)]
struct Shown {
    id: Option<String>,
    kind: String,
    reason: String,
    error: Option<String>,
    worker: Option<String>,
    lane: Option<String>,
    attempt: i64,
    died_at: Option<i64>,
}

/// `GET /api/dead`: letters by kind and reason, and the newest one by one. Payloads stay where they are.
pub(super) async fn dead(State(desk): State<Arc<Desk>>) -> Result<Json<Value>, Refusal> {
    let mut letters = desk.letters.lock().await;
    if let Some((at, shown)) = &letters.taken
        && at.elapsed() < YOUNG
    {
        return Ok(Json(shown.clone()));
    }
    let shown = look(&desk.scope.operator).await?;
    letters.taken = Some((Instant::now(), shown.clone()));
    Ok(Json(shown))
}

async fn look(operator: &Operator) -> Result<Value, Failure> {
    let connection = operator.connect().await?;
    let mut walk = Walk::first(&connection, &operator.names.dead(), MOST_LETTERS).await?;
    let mut groups: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut shown = Vec::new();
    while let Some(delivery) = walk.next().await? {
        let Letter { id, kind, reason, error, worker, lane, attempt, died_at, .. } = Letter::read(&delivery);
        *groups.entry((kind.clone(), reason.clone())).or_default() += 1;
        shown.push(Shown { id, kind, reason, error, worker, lane, attempt, died_at });
    }
    let looked = walk.seen();
    walk.finish().await?;
    Operator::leave(connection).await;
    shown.sort_by_key(|letter| std::cmp::Reverse(letter.died_at));
    shown.truncate(MOST_SHOWN);
    let groups: Vec<_> = groups
        .into_iter()
        .map(|((kind, reason), count)| json!({ "kind": kind, "reason": reason, "count": count }))
        .collect();
    Ok(json!({
        "at": epoch_ms(SystemTime::now()),
        "looked": looked,
        "more": looked >= MOST_LETTERS,
        "groups": groups,
        "letters": shown,
    }))
}
