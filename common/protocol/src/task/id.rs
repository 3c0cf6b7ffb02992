//! The task id: the message's `message_id`, or a generated one.

use std::{borrow::Borrow, fmt, sync::Arc};

use serde::Serialize;
use thiserror::Error;
use uuid::Uuid;

/// Identifies a task in every queue, copy and log. Cheap to clone.
///
/// 1 to [`TaskId::MAX_BYTES`] bytes of UTF-8 without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct TaskId(Arc<str>);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not a valid task id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdError {
    /// The text is empty.
    #[error("message_id is empty")]
    Empty,
    /// Longer than [`TaskId::MAX_BYTES`].
    #[error("message_id has {0} bytes, at most {max} are allowed", max = TaskId::MAX_BYTES)]
    TooLong(usize),
    /// The text contains a control character, which would break log lines and terminals.
    #[error("message_id contains a control character")]
    Control,
}

impl TaskId {
    /// The maximum size of an id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// A new id: a UUID version 7. These are ordered by time, which keeps unique indexes compact.
    pub fn random() -> Self {
        new_uuid().into()
    }

    /// The id of a follow-up: a UUID version 5 of the parent's id and `name`. A redelivered parent derives the
    /// same ids.
    pub fn derived(parent: &Self, name: &str) -> Self {
        let name = [parent.as_str(), "/", name].concat();
        Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).into()
    }

    /// Validates an id from outside.
    ///
    /// # Errors
    /// [`IdError`] if the text is empty, too long or contains a control character.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        match text {
            "" => Err(IdError::Empty),
            text if text.len() > Self::MAX_BYTES => Err(IdError::TooLong(text.len())),
            text if text.chars().any(char::is_control) => Err(IdError::Control),
            text => Ok(Self(text.into())),
        }
    }

    /// The id as shared text.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for TaskId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A new UUID version 7, or the next one of the simulation on this thread.
pub fn new_uuid() -> Uuid {
    #[cfg(feature = "simulation")]
    if let Some(simulated) = SIMULATED.get() {
        return simulated();
    }
    Uuid::now_v7()
}

#[cfg(feature = "simulation")]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<fn() -> Uuid>> = const { std::cell::Cell::new(None) };
}

/// Takes new ids on this thread from `source`, if there is one.
#[cfg(feature = "simulation")]
pub fn simulate_ids(source: Option<fn() -> Uuid>) {
    SIMULATED.set(source);
}

/// The usual text of a UUID.
impl From<Uuid> for TaskId {
    fn from(id: Uuid) -> Self {
        let mut text = Uuid::encode_buffer();
        Self(Arc::from(&*id.hyphenated().encode_lower(&mut text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_long_and_control_character_ids_are_refused() {
        assert_eq!(TaskId::parse("").unwrap_err().to_string(), "message_id is empty");
        assert_eq!(
            TaskId::parse(&"x".repeat(129)).unwrap_err().to_string(),
            "message_id has 129 bytes, at most 128 are allowed"
        );
        assert_eq!(TaskId::parse("a\nb"), Err(IdError::Control));
        assert!(TaskId::parse(&"x".repeat(128)).is_ok());
    }

    #[test]
    fn derived_ids_depend_only_on_parent_and_name() {
        let parent = TaskId::parse("p").unwrap();
        // Ids of tasks that are stored must not change.
        let known = "d434ac5e-5fce-5fd6-83ce-fb052a977865";
        assert_eq!(TaskId::derived(&parent, "alert/0").as_str(), known);
        assert_eq!(TaskId::derived(&parent, "alert/0"), TaskId::derived(&parent, "alert/0"));
        assert_ne!(TaskId::derived(&parent, "alert/0"), TaskId::derived(&parent, "alert/1"));
    }
}
