//! Identifies a group of tasks.

use std::{fmt, sync::Arc};

use serde::Serialize;

/// The name of a group of tasks. Cheap to clone.
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
