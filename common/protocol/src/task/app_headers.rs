//! Headers that an application sets on a task. They have no meaning for Garenne.

use std::collections::BTreeMap;

use amq_protocol::types::{AMQPValue, ShortString};
use thiserror::Error;

use super::{copy::Copied, encoded::entry_bytes, header, header_value::HeaderValue};

/// The headers that an application sets on a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppHeaders(BTreeMap<ShortString, AMQPValue>);

/// Why an application may not set a header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name has a wrong length or a control character.
    #[error("header name {0:?} is refused: expected 1 to 128 bytes without control characters")]
    Name(String),
    /// The name has a meaning for Garenne, RabbitMQ or OpenTelemetry.
    #[error(
        "header name {0:?} is refused: names that begin with \"garenne-\" or \"x-\", and CC, BCC, traceparent and tracestate, \
         are reserved"
    )]
    Reserved(String),
    /// All headers together are too large: copies of the task could not keep them.
    #[error("the task's headers have {bytes} bytes with {name:?}, {} are allowed", AppHeaders::MAX_BYTES)]
    TooLarge {
        /// The header that exceeds the limit.
        name: String,
        /// The size of all headers with it, in bytes.
        bytes: usize,
    },
}

impl AppHeaders {
    /// The maximum size of a name, in bytes.
    pub const MAX_NAME: usize = 128;
    /// The maximum size of all names and values together, in bytes: what every copy of a task keeps.
    pub const MAX_BYTES: usize = Copied::FOREIGN_BYTES;

    /// Sets a header, in place of an earlier one of this name.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn set<'v>(&mut self, name: &str, value: impl Into<HeaderValue<'v>>) -> Result<(), HeaderError> {
        if !(1..=Self::MAX_NAME).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(HeaderError::Name(name.to_owned()));
        }
        if is_reserved(name) {
            return Err(HeaderError::Reserved(name.to_owned()));
        }
        let (name, value) = (ShortString::from(name), value.into().to_amqp());
        let others = self.0.iter().filter(|(other, _)| **other != name);
        let others = total_bytes(others);
        let bytes = others + entry_bytes(&name, &value);
        if bytes > Self::MAX_BYTES {
            return Err(HeaderError::TooLarge { name: name.to_string(), bytes });
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<HeaderValue<'_>> {
        HeaderValue::read(self.0.get(name)?)
    }

    /// The encoded size of all names and values, in bytes.
    pub fn bytes(&self) -> usize {
        total_bytes(&self.0)
    }

    /// The headers, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ShortString, &AMQPValue)> {
        self.0.iter()
    }
}

fn total_bytes<'a>(headers: impl IntoIterator<Item = (&'a ShortString, &'a AMQPValue)>) -> usize {
    headers.into_iter().map(|(name, value)| entry_bytes(name, value)).sum()
}

/// Whether a name has a meaning. In any case: a client of another language may not tell `X-Death` from `x-death`.
fn is_reserved(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_defined = header::ALL.contains(&lower.as_str()) || ["cc", "bcc"].contains(&lower.as_str());
    is_defined || lower.starts_with("garenne-") || lower.starts_with("x-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str) -> String {
        AppHeaders::default().set(name, "v").unwrap_err().to_string()
    }

    #[test]
    fn reserved_and_invalid_names_are_refused_by_name() {
        for name in
            ["garenne-key", "Garenne-Mine", "x-death", "X-mine", "traceparent", "tracestate", "CC", "bcc"]
        {
            assert!(refused(name).starts_with(&format!("header name {name:?} is refused: names that begin")));
        }
        for name in ["", "a\nb", &"n".repeat(129)] {
            assert_eq!(
                refused(name),
                format!(
                    "header name {name:?} is refused: expected 1 to 128 bytes without control characters"
                )
            );
        }
        for name in ["tenant", "my-x-y", "garenne", "x", &"n".repeat(128), "größe"] {
            AppHeaders::default().set(name, "v").unwrap();
        }
    }

    #[test]
    fn all_headers_together_are_what_a_copy_keeps() {
        let mut headers = AppHeaders::default();
        let text = |bytes: usize| "x".repeat(bytes);
        // A name's length and the value's type and length: six bytes.
        headers.set("a", &text(20_000)).unwrap();
        let rest = AppHeaders::MAX_BYTES - 20_007 - 7;
        let error = headers.set("b", &text(rest + 1)).unwrap_err();
        assert_eq!(error.to_string(), "the task's headers have 32769 bytes with \"b\", 32768 are allowed");
        headers.set("b", &text(rest)).unwrap();
        headers.set("a", &text(20_000)).unwrap();
        assert!(headers.set("a", &text(20_001)).is_err());
        assert_eq!((headers.bytes(), headers.get("b")), (32_768, Some(HeaderValue::Text(&text(rest)))));
    }
}
