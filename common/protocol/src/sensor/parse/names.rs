//! Shares repeated names within a body.

use std::sync::Arc;

/// A cache of the last 8 distinct names. A body usually has one device and a few metrics, so comparing with 8
/// names is cheaper than hashing. A body of distinct names only needs no more memory than its readings.
#[derive(Default)]
pub(super) struct Names {
    recent: [Option<Arc<str>>; 8],
    oldest: usize,
}

impl Names {
    /// The name, shared with an earlier equal one if it is still cached.
    pub(super) fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.recent.iter().flatten().find(|known| &***known == name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        self.recent[self.oldest] = Some(new.clone());
        self.oldest = (self.oldest + 1) % self.recent.len();
        new
    }
}
