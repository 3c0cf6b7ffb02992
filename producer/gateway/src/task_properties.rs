//! Checks of the properties that a sender gives a task.

use std::{fmt::Display, time::Duration};

use axum::http::{HeaderMap, HeaderValue};
use garenne_protocol::task::{ContentType, Envelope};

use crate::refusal::Refusal;

/// The content type of a task, JSON if none is given. Refuses one that no handler could read.
pub(super) fn content_type(given: Option<&str>) -> Result<ContentType, Refusal> {
    let Some(given) = given else { return Ok(ContentType::Json) };
    let media = given.split(';').next().unwrap_or_default().trim();
    [ContentType::Json, ContentType::SenmlJson]
        .into_iter()
        .find(|allowed| media.eq_ignore_ascii_case(allowed.as_str()))
        .ok_or_else(|| Refusal::media_type(given, ContentType::SenmlJson.as_str()))
}

/// The value of a header. Refuses a second one.
pub(super) fn only<'h>(
    headers: &'h HeaderMap,
    name: &'static str,
) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Refusal::field(name, "given more than once"));
    }
    Ok(first)
}

/// The key or group in this field, if it is given. Refused if it is empty or too long.
pub(super) fn short_text(field: &'static str, given: Option<&str>) -> Result<Option<String>, Refusal> {
    match given {
        Some(text) if !(1..=Envelope::MAX_TEXT).contains(&text.len()) => {
            Err(Refusal::field(field, format!("expected 1 to {} bytes", Envelope::MAX_TEXT)))
        }
        text => Ok(text.map(str::to_owned)),
    }
}

/// The duration in this field. `given` is its value in an error, and `parsed` the number that it is. Refused if it is
/// no number, or longer than a task may have.
pub(super) fn milliseconds(
    field: &'static str,
    given: impl Display,
    parsed: Option<u64>,
) -> Result<Duration, Refusal> {
    const MAX: u64 = Envelope::MAX_MS.unsigned_abs();
    match parsed {
        Some(ms @ 0..=MAX) => Ok(Duration::from_millis(ms)),
        _ => {
            let problem = format!("{given} is not a whole number of milliseconds from 0 to {MAX}");
            Err(Refusal::field(field, problem))
        }
    }
}
