//! The filter that a list of dead letters and the jobs of the page share.

use garenne_common::exit::Failure;
use serde::{Deserialize, Serialize};

use crate::dead::{Conditions, Filter};

/// All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LetterFilter {
    /// Exactly this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<String>,
    /// An error, or the pattern of an error as the list shows it; empty for letters without an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error_like: Option<String>,
    /// Part of the kind, error, group or id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

impl LetterFilter {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same for a walk over the letters.
    pub(super) fn filter(&self) -> Result<Filter, Failure> {
        let Self { kind, reason, group, error_like, text } = self.clone();
        let group = group.into_iter().collect();
        let filter = Filter {
            conditions: Conditions { exact_kind: kind, group, ..Conditions::default() },
            reason: reason.into_iter().collect(),
            error_like,
            text,
            ..Filter::default()
        };
        filter.check()?;
        Ok(filter)
    }
}
