//! The fleet's queues on the broker: single ones by passive declare, all of them as a snapshot.

mod passive_declare;
mod snapshot;

pub use passive_declare::{Depth, LookError, Looker};
pub use snapshot::{LaneStatus, QueueStatus, Snapshot, Source};
