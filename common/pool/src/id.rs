//! Names of tasks and groups.

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

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Text(text) => text.fmt(f),
            Repr::Number(number) => number.fmt(f),
        }
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TaskId {
    /// An id that is a number. Does not allocate.
    #[must_use]
    pub const fn number(number: u64) -> Self {
        Self(Repr::Number(number))
    }
}

impl<S: Into<Arc<str>>> From<S> for TaskId {
    fn from(text: S) -> Self {
        Self(Repr::Text(text.into()))
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The name of a group of tasks. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct GroupName(Arc<str>);

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl GroupName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<S: Into<Arc<str>>> From<S> for GroupName {
    fn from(text: S) -> Self {
        Self(text.into())
    }
}
