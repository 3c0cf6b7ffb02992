//! The records of a batch, for a handler whose records say more together than each alone.

use std::{any::Any, sync::OnceLock};

use bytes::Bytes;

use super::ContentType;

/// All records of one batch, shared by the attempts at them.
#[derive(Debug)]
pub struct BatchRecords {
    bodies: Vec<(ContentType, Bytes)>,
    known: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl BatchRecords {
    /// The payloads of a batch, in its order.
    pub(crate) fn new(bodies: Vec<(ContentType, Bytes)>) -> Self {
        Self { bodies, known: OnceLock::new() }
    }

    /// What `read` makes of all of them, which only the first to ask does. A batch is of one kind, so all who
    /// ask want the same.
    pub fn known<T: Any + Send + Sync>(&self, read: impl FnOnce(&[(ContentType, Bytes)]) -> T) -> &T {
        let known = self.known.get_or_init(|| Box::new(read(&self.bodies)));
        known.downcast_ref().expect("one handler for one kind")
    }
}
