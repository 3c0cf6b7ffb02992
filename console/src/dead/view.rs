//! Dead letters as text and as JSON.

use std::{fmt::Write, time::SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use garenne_common::text::{printable, printable_json};
use garenne_protocol::task::{epoch_ms, header};
use lapin::{BasicProperties, message::Delivery, types::AMQPValue};
use serde_json::{Map, Value, json};

use super::{
    counts,
    dead_letter::{DeadLetter, FIELD_HEADERS, rfc3339},
};
use crate::table::{cut, duration, grouped, lay_out};

/// Default number of dead letters in a list.
pub(super) const DEFAULT_LIMIT: usize = 50;
/// Width of errors in a list, in characters.
const ERROR_WIDTH: usize = 70;
/// Bytes of a payload that are shown.
const MAX_BODY: usize = 64 * 1024;

/// The newest dead letters, and counts by kind and reason.
pub(super) fn list(letters: &[DeadLetter], read: u64, limit: usize) -> String {
    let now = epoch_ms(SystemTime::now());
    let columns = ["id", "kind", "reason", ">attempts", ">died", "error"];
    let row = |letter: &DeadLetter| {
        vec![
            letter.id.clone().unwrap_or_else(|| "-".to_owned()),
            letter.kind.clone(),
            if letter.by_broker { format!("{} (broker)", letter.reason) } else { letter.reason.clone() },
            letter.attempt.to_string(),
            letter.died_at.map_or("-".to_owned(), |at| {
                format!("{} ago", duration(now.saturating_sub(at).max(0).unsigned_abs()))
            }),
            cut(letter.error.as_deref().unwrap_or("-"), ERROR_WIDTH),
        ]
    };
    let shown = &letters[letters.len().saturating_sub(limit)..];
    let mut text = String::new();
    if !shown.is_empty() {
        text += &lay_out(&columns, shown.iter().map(row));
        text.push('\n');
    }
    let groups: Vec<_> = counts(letters)
        .into_iter()
        .map(|((kind, reason), n)| format!("{} {} {}", grouped(n), printable(kind), printable(reason)))
        .collect();
    let matched = grouped(letters.len() as u64);
    let _ = write!(text, "{matched} of {} dead letters", grouped(read));
    if shown.len() < letters.len() {
        let _ = write!(text, ", showing the newest {} (--limit)", grouped(shown.len() as u64));
    }
    if !groups.is_empty() {
        let _ = write!(text, ": {}", groups.join(", "));
    }
    text.push('\n');
    text
}

/// One JSON object per line, without payloads.
pub(super) fn json_lines(letters: &[DeadLetter], limit: Option<usize>) -> String {
    let skipped = limit.map_or(0, |limit| letters.len().saturating_sub(limit));
    letters[skipped..].iter().fold(String::new(), |mut text, letter| {
        let _ = writeln!(text, "{}", object(letter));
        text
    })
}

/// Everything about each dead letter, one JSON object per line.
pub(super) fn show_json(letters: &[(DeadLetter, Delivery)]) -> String {
    letters.iter().fold(String::new(), |mut text, (letter, delivery)| {
        let mut whole = object(letter);
        whole["headers"] = headers(&delivery.properties);
        whole["body"] = serde_json::from_slice(&delivery.data)
            .unwrap_or_else(|_| json!({"base64": BASE64_STANDARD.encode(&delivery.data)}));
        let _ = writeln!(text, "{whole}");
        text
    })
}

/// Everything about each dead letter, as text.
pub(super) fn show(letters: &[(DeadLetter, Delivery)]) -> String {
    let mut text = String::new();
    for (letter, delivery) in letters {
        // Escapes line ends, so that a value cannot look like another field.
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<12} {}", printable(value));
        };
        line("id", letter.id.as_deref().unwrap_or("-"));
        line("kind", &letter.kind);
        line("reason", &letter.reason);
        line("error", letter.error.as_deref().unwrap_or("-"));
        line("attempts", &letter.attempt.to_string());
        line("worker", letter.worker.as_deref().unwrap_or("-"));
        line("lane", letter.lane.as_deref().or(letter.queue.as_deref()).unwrap_or("-"));
        line("first seen", &letter.first_seen.and_then(rfc3339).unwrap_or_else(|| "-".to_owned()));
        line("died", &letter.died_at.and_then(rfc3339).unwrap_or_else(|| "-".to_owned()));
        if let Value::Object(map) = headers(&delivery.properties) {
            for (name, value) in map {
                line("header", &format!("{name} = {}", printable_json(&value.to_string())));
            }
        }
        let _ = writeln!(text, "payload      {} bytes\n{}\n", letter.bytes, body(&delivery.data));
    }
    text
}

fn body(body: &[u8]) -> String {
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        return cut(&printable_json(&format!("{value:#}")), MAX_BODY);
    }
    let shown = &body[..body.len().min(MAX_BODY)];
    match std::str::from_utf8(shown) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("(binary) {}", shown.escape_ascii()),
    }
}

fn object(letter: &DeadLetter) -> Value {
    serde_json::to_value(letter).expect("text and numbers")
}

/// Headers that are not shown as a field of their own.
fn headers(properties: &BasicProperties) -> Value {
    let table = properties.headers();
    let rest = table
        .iter()
        .flat_map(|table| table.inner())
        .filter(|(name, _)| !FIELD_HEADERS.contains(&name.as_str()));
    rest.map(|(name, value)| (name.to_string(), plain(value))).collect::<Map<_, _>>().into()
}

fn plain(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(truth) => json!(truth),
        AMQPValue::Float(number) => json!(number),
        AMQPValue::Double(number) => json!(number),
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(plain).collect(),
        AMQPValue::FieldTable(table) => {
            let pairs = table.inner().iter().map(|(name, value)| (name.to_string(), plain(value)));
            pairs.collect::<Map<_, _>>().into()
        }
        other => match (header::text(other), header::integer(other)) {
            (Some(text), _) => json!(text),
            (None, Some(number)) => json!(number),
            (None, None) => Value::Null,
        },
    }
}
