//! The page of dead letters that was read last.

use serde_json::Value;
use tokio::time::Instant;

use super::letter_filter::LetterFilter;

/// A page that was read.
#[derive(Clone)]
pub(super) struct ListedPage {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) filter: LetterFilter,
    /// Until then it is served again.
    pub(super) until: Instant,
    pub(super) list: Value,
}
