//! The dead letters that the page shows.

use std::time::{Duration, SystemTime};

use axum::{
    Extension, Json,
    extract::{Query, State, rejection::QueryRejection},
    http::StatusCode,
};
use garenne_common::{exit::Failure, lock::lock};
use garenne_operator::{dead::HeldQueue, operator::Operator};
use garenne_protocol::task::epoch_ms;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    actions::command,
    app_state::{App, ListedPage},
    letter_filter::LetterFilter,
    problem::Problem,
    user::Requester,
};
use crate::dead::{self, Conditions, EDIT, Filter, Listing, Page, edit_record, replay_edited, shown_letter};

/// Limit on the letters read. A queue is read from its oldest letter on, and a walk holds every letter that it reads.
const MAX_READ: u64 = 100_000;
/// Letters of a page.
const PAGE_SIZE: usize = 100;
/// The last page: the letters of all pages up to the requested one are in memory while the queue is read.
const MAX_PAGE: usize = 100;
/// Kinds, reasons and errors that are listed with their counts.
const MAX_ERRORS: usize = 100;
/// How long a page is served again at least.
const MIN_AGE: Duration = Duration::from_secs(5);
/// The same in durations of the walk that read it, so that a long queue is held for a small part of the time.
const AGE_IN_WALKS: u32 = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Counted from 1; page 1 has the newest letters.
    page: Option<usize>,
    kind: Option<String>,
    reason: Option<String>,
    group: Option<String>,
    error_like: Option<String>,
    text: Option<String>,
}

/// The letters that match by kind, reason and error, and a page of them without their payloads, newest first.
pub(super) async fn list(
    State(app): App,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(ListQuery { page, kind, reason, group, error_like, text }) = query?;
    let filter = LetterFilter { kind, reason, group, error_like, text };
    let number = page.unwrap_or(1);
    if !(1..=MAX_PAGE).contains(&number) {
        return Err(Problem::bad_request(format!("page = {number} is refused: expected 1 to {MAX_PAGE}")));
    }
    let last = || lock(&app.listed).clone().filter(|last| last.number == number && last.filter == filter);
    let _walk = match (app.walk().await, last()) {
        (Ok(_), Some(last)) if Instant::now() < last.until => return Ok(Json(last.list)),
        (Ok(walk), _) => walk,
        // While a job moves letters, the last list is better than none.
        (Err(_), Some(last)) => return Ok(Json(last.list)),
        (Err(problem), None) => return Err(problem),
    };
    let started = Instant::now();
    let list = read(app.operator(), Page { number, size: PAGE_SIZE }, &filter.filter()?).await?;
    let until = Instant::now() + MIN_AGE.max(started.elapsed() * AGE_IN_WALKS);
    *lock(&app.listed) = Some(ListedPage { number, filter, until, list: list.clone() });
    Ok(Json(list))
}

async fn read(operator: &Operator, page: Page, filter: &Filter) -> Result<Value, Failure> {
    let hidden = ProgressBar::hidden();
    let mut listing = Listing::new(page);
    let add = |letter, _| listing.add(letter);
    let read = dead::read(operator, HeldQueue::Dead, filter, MAX_READ, &hidden, add).await?;
    let (errors, other_errors) = listing.errors(MAX_ERRORS);
    Ok(json!({
        "at": epoch_ms(SystemTime::now()),
        "read": read,
        "more": read >= MAX_READ,
        "page": page.number,
        "pages": listing.pages().min(MAX_PAGE as u64),
        "matched": listing.matched(),
        "errors": errors,
        "other_errors": other_errors,
        "letters": listing.newest_first().collect::<Vec<_>>(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LetterQuery {
    id: String,
}

/// The newest letter with an id: its fields, headers and the beginning of its payload.
pub(super) async fn letter(
    State(app): App,
    query: Result<Query<LetterQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(LetterQuery { id }) = query?;
    let _walk = app.walk().await?;
    let filter = Conditions { id: vec![id.clone()], ..Conditions::default() }.into();
    let hidden = ProgressBar::hidden();
    let mut found = None;
    let keep = |letter, delivery| found = Some((letter, delivery));
    dead::read(app.operator(), HeldQueue::Dead, &filter, MAX_READ, &hidden, keep).await?;
    let missing = || Problem::new(StatusCode::NOT_FOUND, format!("no dead letter has the id {id:?}"));
    let (letter, delivery) = found.ok_or_else(missing)?;
    Ok(Json(shown_letter(&letter, &delivery)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EditedPayload {
    id: String,
    payload: String,
}

/// Publishes the newest letter with an id with another payload and a new id, and removes it.
pub(super) async fn edit(
    State(app): App,
    Extension(requester): Extension<Requester>,
    Json(EditedPayload { id, payload }): Json<EditedPayload>,
) -> Result<Json<Value>, Problem> {
    // Refuses while a job moves letters. One that comes later waits behind this walk.
    drop(app.walk().await?);
    command(app, requester, EDIT, edit_record(&id, payload.len()), move |app| {
        Box::pin(async move {
            let _walk = app.walk.lock().await;
            let edited = replay_edited(app.operator(), &id, payload.into_bytes()).await?;
            app.forget_listed();
            Ok(json!(edited))
        })
    })
    .await
}
