//! The fleet's queues: single ones by passive declare, all of them as a snapshot.

mod inspector;
mod snapshot;

pub use inspector::{InspectError, QueueInspector, QueueStatus, existing};
pub use snapshot::{LaneStatus, Snapshot, Source};
