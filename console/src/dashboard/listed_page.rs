//! The page of dead letters that was read last.

use serde_json::Value;
use tokio::time::Instant;

/// A page that was read.
#[derive(Clone)]
pub(super) struct ListedPage {
    /// Counted from 1.
    pub(super) number: usize,
    /// Until then it is served again.
    pub(super) until: Instant,
    pub(super) list: Value,
}
