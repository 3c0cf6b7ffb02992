//! The mark of a message whose content header was replaced.
//!
//! The mark is a header, because lapin passes nothing else on with a message. Its value starts with random bytes
//! that only this process knows, so that a publisher cannot forge it. It must not leave the process: a consumer
//! removes it ([`take_unreadable`]) before it publishes a copy.

use std::sync::LazyLock;

use garenne_protocol::task::header;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

/// The header that holds the mark.
pub const UNREADABLE: &str = "garenne-unreadable";

/// The random prefix of all marks of this process.
static SECRET: LazyLock<String> = LazyLock::new(|| format!("{:016x}{:016x} ", random(), random()));

fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}

pub(super) fn mark(headers: &mut FieldTable, problem: &str) {
    headers.insert(UNREADABLE.into(), header::long(&format!("{}{problem}", *SECRET)));
}

/// Why the message's content header was replaced; its properties are those that could be recovered. `None` for
/// any other message, also if a publisher wrote a header of this name.
pub fn unreadable(properties: &BasicProperties) -> Option<&str> {
    let AMQPValue::LongString(text) = header::get(properties.headers(), UNREADABLE)? else { return None };
    std::str::from_utf8(text.as_bytes()).ok()?.strip_prefix(SECRET.as_str())
}

/// As [`unreadable`], and removes the mark.
pub fn take_unreadable(properties: &mut BasicProperties) -> Option<String> {
    let problem = unreadable(properties)?.to_owned();
    let mut kept = properties.headers().as_ref()?.inner().clone();
    kept.remove(UNREADABLE);
    *properties = std::mem::take(properties).with_headers(kept.into());
    Some(problem)
}
