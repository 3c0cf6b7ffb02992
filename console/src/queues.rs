//! The fleet's queues: single ones by passive declare, all of them as a snapshot.

mod inspector;
mod origin;
mod snapshot;

pub use inspector::{QueueInspector, QueueStatus, failure};
pub use origin::{Origin, Source};
pub use snapshot::{LaneStatus, Snapshot};
