//! The fleet's queues: single ones by passive declare, all of them as a snapshot.

mod inspector;
mod snapshot;

pub use inspector::{Depth, InspectError, QueueInspector};
pub use snapshot::{LaneStatus, QueueStatus, Snapshot, Source};
