//! The fleet's queues: single ones by passive declare, all of them as a snapshot, and the messages of one.

mod figure_source;
mod inspector;
mod look;
mod snapshot;
mod snapshot_reader;
mod walk;

pub use figure_source::{FigureSource, Source};
pub use inspector::{QueueInspector, QueueStatus, failure};
pub use look::{LookLimits, QueuedTask, Seen, allowed, distance, look};
pub use snapshot::{LaneStatus, Snapshot};
pub use snapshot_reader::SnapshotReader;
pub use walk::QueueWalk;
