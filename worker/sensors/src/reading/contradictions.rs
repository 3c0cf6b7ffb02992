//! The readings of a task that contradict each other.

use garenne::handler::{ContentType, RefusedPart};
use garenne_protocol::{
    sensor::{KeyedValues, Record},
    task::{DeadReason, reading_body},
};

/// Most refused readings that an error names.
const MAX_NAMED: usize = 5;

/// Takes the readings out that have another value than an earlier one for the same device, metric and time, as the gateway
/// does with a request. A sink stores one of them only.
pub(super) fn take_contradictions(records: &mut Vec<Record>) -> Option<RefusedPart> {
    if records.len() < 2 {
        return None;
    }
    let (mut values, mut refused, mut bodies) = (KeyedValues::default(), Vec::new(), Vec::new());
    let mut index = 0;
    records.retain(|record| {
        let added = values.add(&record.reading).map_err(|error| {
            refused.push(error.in_record(index));
            bodies.push(reading_body(record));
        });
        index += 1;
        added.is_ok()
    });
    if refused.is_empty() {
        return None;
    }
    let mut named: Vec<_> = refused.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    if let more @ 1.. = refused.len().saturating_sub(MAX_NAMED) {
        named.push(format!("and {more} more"));
    }
    Some(RefusedPart {
        reason: DeadReason::Conflict,
        error: named.join("; "),
        codes: refused.iter().map(|refused| refused.code.code()).collect(),
        payload: match &mut bodies[..] {
            [body] => std::mem::take(body),
            bodies => [b"[".as_slice(), &bodies.join(&b','), b"]"].concat(),
        },
        content_type: Some(ContentType::Json),
    })
}
