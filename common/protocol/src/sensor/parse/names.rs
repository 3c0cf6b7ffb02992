//! Names that repeat within a body are stored once.

use std::sync::Arc;

/// The last few distinct names. A body mostly holds one device and a handful of metrics; comparing
/// against so few is cheaper than hashing, and a body of nothing but new names costs no more
/// memory than its readings.
#[derive(Default)]
pub(super) struct Names {
    recent: [Option<Arc<str>>; 8],
    oldest: usize,
}

impl Names {
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
