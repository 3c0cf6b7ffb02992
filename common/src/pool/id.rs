//! Names of tasks and groups: cheap to clone, shown in logs, traces and snapshots.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer};

/// The external id of a task. The pool neither makes ids nor requires them to be unique.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TaskId(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Text(Arc<str>),
    // A counter is the common id of tasks that have no name of their own, and must not allocate.
    Number(u64),
}

impl TaskId {
    /// An id that is a number; takes no memory of its own.
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

/// The name of a group of tasks.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct GroupName(Arc<str>);

impl GroupName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for GroupName {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for GroupName {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Arc<str>> for GroupName {
    fn from(text: Arc<str>) -> Self {
        Self(text)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
