//! The task id: AMQP's `message_id`, or one of our own.

use std::{borrow::Borrow, fmt, sync::Arc};

use thiserror::Error;
use uuid::Uuid;

/// Identifies a task wherever it travels. Cheap to clone.
///
/// At most [`TaskId::MAX_BYTES`] bytes of UTF-8 without control characters; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

/// Why a text is no task id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdError {
    /// Nothing in it.
    #[error("message_id is empty")]
    Empty,
    /// Longer than [`TaskId::MAX_BYTES`].
    #[error("message_id has {0} bytes, at most {max} are allowed", max = TaskId::MAX_BYTES)]
    TooLong(usize),
    /// It would break log lines and terminals.
    #[error("message_id has a control character")]
    Control,
}

impl TaskId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// A new id, ordered by time (UUID version 7), so that unique indexes stay compact.
    pub fn random() -> Self {
        Self(Uuid::now_v7().to_string().into())
    }

    /// An id that follows from a parent's and a position: the same parent redelivered gives the same
    /// children.
    pub fn derived(parent: &Self, name: &str) -> Self {
        let name = format!("{parent}/{name}");
        Self(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).to_string().into())
    }

    /// Takes a text that somebody else wrote.
    ///
    /// # Errors
    /// [`IdError`] when it is empty, too long or holds a control character.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        match text {
            "" => Err(IdError::Empty),
            text if text.len() > Self::MAX_BYTES => Err(IdError::TooLong(text.len())),
            text if text.chars().any(char::is_control) => Err(IdError::Control),
            text => Ok(Self(text.into())),
        }
    }

    /// The id's shared text.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for TaskId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_would_not_fit() {
        assert_eq!(TaskId::parse("").unwrap_err().to_string(), "message_id is empty");
        assert_eq!(
            TaskId::parse(&"x".repeat(129)).unwrap_err().to_string(),
            "message_id has 129 bytes, at most 128 are allowed"
        );
        assert_eq!(TaskId::parse("a\nb"), Err(IdError::Control));
        assert!(TaskId::parse(&"x".repeat(128)).is_ok());
    }

    #[test]
    fn children_of_a_redelivered_parent_are_the_same() {
        let parent = TaskId::parse("p").unwrap();
        assert_eq!(TaskId::derived(&parent, "alert/0"), TaskId::derived(&parent, "alert/0"));
        assert_ne!(TaskId::derived(&parent, "alert/0"), TaskId::derived(&parent, "alert/1"));
    }
}
