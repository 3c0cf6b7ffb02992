//! The records of a batch, for handlers that combine the records of one batch.

use std::{any::Any, sync::OnceLock};

use bytes::Bytes;

use super::ContentType;

/// The payloads of all records of a batch, shared by the attempts at them.
#[derive(Debug)]
pub struct BatchRecords {
    bodies: Vec<(ContentType, Bytes)>,
    derived: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl BatchRecords {
    /// `bodies` are the payloads of a batch, in its order.
    pub(crate) fn new(bodies: Vec<(ContentType, Bytes)>) -> Self {
        Self { bodies, derived: OnceLock::new() }
    }

    /// A value derived from all payloads. The first call computes it with `derive`, later calls return the same
    /// value.
    ///
    /// # Panics
    /// If two calls for the same batch ask for different types. All records of a batch have the same handler.
    pub fn derived<T: Any + Send + Sync>(&self, derive: impl FnOnce(&[(ContentType, Bytes)]) -> T) -> &T {
        let derived = self.derived.get_or_init(|| Box::new(derive(&self.bodies)));
        derived.downcast_ref().expect("all records of a batch have the same handler")
    }
}
