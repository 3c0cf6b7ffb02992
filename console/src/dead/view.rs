//! Dead letters as text and as JSON.

use std::{fmt::Write, time::SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use garenne_common::text::{printable, printable_json};
use garenne_operator::{
    dead::{DeadLetter, FIELD_HEADERS, HeldQueue, rfc3339},
    table::{cut, duration, grouped, lay_out},
};
use garenne_protocol::task::{epoch_ms, header};
use lapin::{BasicProperties, message::Delivery, types::AMQPValue};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::listing::Listing;

/// Default number of dead letters in a list.
pub(super) const DEFAULT_LIMIT: usize = 50;
/// Width of errors in a list, in characters.
const ERROR_WIDTH: usize = 70;
/// Bytes of a payload that are shown.
const MAX_BODY: usize = 64 * 1024;
/// The headers in which the broker counts returns to the queue. Before RabbitMQ 4.3 each look at the queue is a return,
/// so they say nothing about the task.
const RETURN_COUNTS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// A page of the newest messages, newest last, and counts by kind and reason.
pub(super) fn list(queue: HeldQueue, listing: &Listing, read: u64) -> String {
    let now = epoch_ms(SystemTime::now());
    let shown: Vec<_> = listing.newest_first().rev().collect();
    let mut text = String::new();
    if !shown.is_empty() {
        text += &match queue {
            HeldQueue::Dead => {
                let columns = ["id", "kind", "group", "reason", ">attempts", ">died", "error"];
                lay_out(&columns, shown.iter().map(|letter| dead_row(letter, now)))
            }
            HeldQueue::Unroutable => {
                let columns = ["id", "kind", "group", "routing key", ">published", ">bytes"];
                lay_out(&columns, shown.iter().map(|message| unroutable_row(message, now)))
            }
        };
        text.push('\n');
    }
    let _ = write!(text, "{} of {} {}", grouped(listing.matched()), grouped(read), queue.noun());
    let (page, pages) = (listing.page(), listing.pages());
    if page.number > 1 {
        let _ = write!(text, ", page {} of {}", grouped(page.number as u64), grouped(pages));
    } else if pages > 1 {
        let _ = write!(text, ", showing the newest {} (--limit, --page)", grouped(shown.len() as u64));
    }
    let groups = listing.groups().map(|(kind, reason, count)| match queue {
        HeldQueue::Dead => format!("{} {} {}", grouped(count), printable(kind), printable(reason)),
        HeldQueue::Unroutable => format!("{} {}", grouped(count), printable(kind)),
    });
    let others =
        (listing.ungrouped() > 0).then(|| format!("{} of other kinds", grouped(listing.ungrouped())));
    let groups: Vec<_> = groups.chain(others).collect();
    if !groups.is_empty() {
        let _ = write!(text, ": {}", groups.join(", "));
    }
    text.push('\n');
    text
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn ago(at: Option<i64>, now: i64) -> String {
    let text = |at: i64| format!("{} ago", duration(now.saturating_sub(at).max(0).unsigned_abs()));
    at.map_or("-".to_owned(), text)
}

fn dead_row(letter: &DeadLetter, now: i64) -> Vec<String> {
    vec![
        or_dash(letter.id.as_deref()),
        letter.kind.clone(),
        or_dash(letter.group.as_deref()),
        if letter.by_broker { format!("{} (broker)", letter.reason) } else { letter.reason.clone() },
        letter.attempt.to_string(),
        ago(letter.died_at, now),
        cut(letter.error.as_deref().unwrap_or("-"), ERROR_WIDTH),
    ]
}

fn unroutable_row(message: &DeadLetter, now: i64) -> Vec<String> {
    vec![
        or_dash(message.id.as_deref()),
        message.kind.clone(),
        or_dash(message.group.as_deref()),
        message.routing_key.clone(),
        ago(message.died_at, now),
        grouped(message.bytes as u64),
    ]
}

/// A message of a list as a JSON object, without its payload.
pub(super) fn listed_json(queue: HeldQueue, letter: &DeadLetter) -> Value {
    match queue {
        HeldQueue::Dead => object(letter),
        HeldQueue::Unroutable => json!({
            "id": letter.id,
            "kind": letter.kind,
            "group": letter.group,
            "routing_key": letter.routing_key,
            "published_at": letter.died_at.and_then(rfc3339),
            "bytes": letter.bytes,
        }),
    }
}

/// Everything about a dead letter as a JSON object.
pub(super) fn whole_json((letter, delivery): &(DeadLetter, Delivery)) -> Value {
    let mut whole = object(letter);
    whole["headers"] = headers(&delivery.properties);
    whole["body"] = serde_json::from_slice(&delivery.data)
        .unwrap_or_else(|_| json!({"base64": BASE64_STANDARD.encode(&delivery.data)}));
    whole
}

/// A dead letter with its headers and at most 64 KiB of its payload, as one JSON object.
pub(crate) fn shown_letter(letter: &DeadLetter, delivery: &Delivery) -> Value {
    let mut whole = object(letter);
    whole["headers"] = headers(&delivery.properties);
    whole["payload"] = cut(&body(&delivery.data), MAX_BODY).into();
    whole["editable"] = editable(&delivery.data).into();
    whole
}

/// The payload as a person may edit it: unchanged but for hidden characters in JSON, which are escaped. None if it is long,
/// not text, or has hidden characters that cannot be escaped.
fn editable(data: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(data).ok().filter(|text| text.len() <= MAX_BODY)?;
    let shown = printable_json(text);
    (shown == text || serde_json::from_str::<IgnoredAny>(text).is_ok()).then(|| shown.into_owned())
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
        line("group", letter.group.as_deref().unwrap_or("-"));
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

/// Headers that are not shown as a field of their own, without the broker's counts of returns.
fn headers(properties: &BasicProperties) -> Value {
    let table = properties.headers();
    let rest = table
        .iter()
        .flat_map(|table| table.inner())
        .filter(|(name, _)| ![&FIELD_HEADERS[..], &RETURN_COUNTS].concat().contains(&name.as_str()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_edited_as_it_is_unless_a_person_could_not_see_it() {
        let shown = |data: &[u8]| editable(data);
        assert_eq!(
            shown(b"{\"a\":\n 1.000}").as_deref(),
            Some("{\"a\":\n 1.000}"),
            "numbers stay as they are"
        );
        assert_eq!(shown("\"a\u{202e}\"".as_bytes()).as_deref(), Some(r#""a\u202e""#), "the same in JSON");
        assert_eq!(shown(b"a;b\nc;d").as_deref(), Some("a;b\nc;d"));
        for hidden in ["a\u{202e}".as_bytes(), b"\xff", &[b' '; MAX_BODY + 1]] {
            assert_eq!(shown(hidden), None);
        }
    }
}
