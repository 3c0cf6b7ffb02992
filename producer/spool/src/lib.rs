//! `garenne-spool`: keeps tasks on disk while the broker cannot confirm them.
//!
//! A spool is a directory with an append-only log of segments. One process writes it; [`Spool`] is its handle.
//!
//! 1. [`Spool::append`] stores records. It returns after the fsync of their bytes; appends that wait together share one
//!    fsync.
//! 2. [`Spool::read`] returns records in the order of their acceptance, from any position that is not acknowledged.
//! 3. [`Spool::ack`] acknowledges all records before a position. Segments without others are removed.
//!
//! Delivery is at least once: after a crash the records after the last durable acknowledgement are read again, with the
//! same ids. Bounds ([`SpoolConfig`]) and failures of the disk refuse new records and drop none. A corrupt segment never
//! stops the others: its readable records are read, and its file is kept under another name. Such a segment is set
//! aside, as are records that can never be published. It counts against the bound of bytes until an operator frees it.
//!
//! [`Inspection`] looks at a spool from outside. [`task`] converts tasks to records.

mod config;
mod cursor;
mod error;
mod frame;
mod inspect;
mod log;
mod record;
mod segment;
mod spool;
mod status;
mod storage;
pub mod task;
mod without_records;

pub use config::SpoolConfig;
pub use error::{OpenError, SpoolError};
pub use frame::FORMAT_VERSION;
pub use inspect::{InspectedSegment, Inspection};
pub use record::{Batch, Position, Record};
pub use spool::Spool;
pub use status::SpoolStatus;

#[cfg(test)]
mod tests;
