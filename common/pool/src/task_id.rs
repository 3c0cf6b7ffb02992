//! Identifies a task in logs, traces and snapshots.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer};

/// The id of a task. Cheap to clone.
///
/// The pool neither creates ids nor requires them to be unique.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TaskId(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Text(Arc<str>),
    // Tasks without a name of their own are often numbered. A number does not allocate.
    Number(u64),
}

impl TaskId {
    /// An id that is a number. Does not allocate.
    #[must_use]
    pub const fn number(number: u64) -> Self {
        Self(Repr::Number(number))
    }
}

impl From<&str> for TaskId {
    fn from(text: &str) -> Self {
        Self(Repr::Text(text.into()))
    }
}

impl From<String> for TaskId {
    fn from(text: String) -> Self {
        Self(Repr::Text(text.into()))
    }
}

impl From<Arc<str>> for TaskId {
    fn from(text: Arc<str>) -> Self {
        Self(Repr::Text(text))
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Text(text) => f.write_str(text),
            Repr::Number(number) => write!(f, "{number}"),
        }
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
