//! The mark of a message whose content header was replaced.
//!
//! The mark is a header, because lapin hands on nothing else. Its value begins with random bytes that only
//! this process knows, so that a publisher cannot forge it. It must not leave the process: a consumer takes it
//! off ([`take_unreadable`]) before it publishes a copy.

use std::{collections::BTreeMap, fmt::Display, sync::LazyLock};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

/// The header that holds the mark.
pub const UNREADABLE: &str = "garenne-unreadable";

/// What every mark of this process begins with.
static SECRET: LazyLock<String> = LazyLock::new(|| format!("{:032x} ", rand::random::<u128>()));

pub(super) fn mark(problem: &dyn Display) -> (ShortString, AMQPValue) {
    (UNREADABLE.into(), AMQPValue::LongString(format!("{}{problem}", *SECRET).into()))
}

fn problem(value: &AMQPValue) -> Option<&str> {
    match value {
        AMQPValue::LongString(text) => {
            std::str::from_utf8(text.as_bytes()).ok()?.strip_prefix(SECRET.as_str())
        }
        _ => None,
    }
}

/// Why the message could not be read as it was published: its properties are what could be recovered.
/// Nothing for an ordinary message; a mark that a publisher wrote is an ordinary header.
pub fn unreadable(properties: &BasicProperties) -> Option<&str> {
    problem(properties.headers().as_ref()?.inner().get(UNREADABLE)?)
}

/// The same, and takes the mark off.
pub fn take_unreadable(properties: &mut BasicProperties) -> Option<String> {
    let problem = unreadable(properties)?.to_owned();
    let headers = properties.headers().iter().flat_map(FieldTable::inner);
    let kept: BTreeMap<_, _> = headers
        .filter(|(name, _)| name.as_str() != UNREADABLE)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    *properties = std::mem::take(properties).with_headers(kept.into());
    Some(problem)
}
