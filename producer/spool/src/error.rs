//! Errors of the spool.

use std::{io, path::PathBuf, time::Duration};

use garenne_common::config::Size;
use thiserror::Error;

/// Why a spool cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory open.
    #[error("spool {} is in use by process {holder}", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The process id in the lock file, or `unknown`.
        holder: String,
    },
    /// A directory or another thing that is no file has the name of a segment.
    #[error("spool segment {} is no file: move it out of the spool", segment.display())]
    NoFile {
        /// The path of the segment.
        segment: PathBuf,
    },
    /// A segment has a format that this program does not know.
    #[error("spool segment {segment} has format version {found}, expected {expected}", expected = crate::frame::FORMAT_VERSION)]
    Version {
        /// The file.
        segment: String,
        /// The version of the format.
        found: u32,
    },
    /// The file system failed.
    #[error("cannot open spool {}: {operation}: {error}", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// The operation.
        operation: &'static str,
        /// The reason.
        error: io::Error,
    },
}

/// Why records were not accepted, or could not be read or acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpoolError {
    /// The spool has no room for the records. None of them was stored.
    #[error("spool is full: {}", full(*used, *set_aside, *needed, *limit))]
    Full {
        /// Size of all segments.
        used: Size,
        /// Size of those that were set aside. Only an operator can free it.
        set_aside: Size,
        /// Size of the records.
        needed: Size,
        /// The bound.
        limit: Size,
    },
    /// The oldest record waits for longer than the bound. None of the records was stored.
    #[error("spool is too old: its oldest record waits for {age:?}, at most {limit:?} are allowed")]
    TooOld {
        /// Age of the oldest record, in whole seconds.
        age: Duration,
        /// The bound.
        limit: Duration,
    },
    /// The file system would have less free space than the bound. None of the records was stored.
    #[error("disk of the spool is nearly full: {free} free, {needed} needed, at least {limit} must remain")]
    LowDisk {
        /// The free space.
        free: Size,
        /// Size of the records.
        needed: Size,
        /// The bound.
        limit: Size,
    },
    /// A record has an id or a body over its limit. None of the records was stored.
    #[error("record {record}: {field} has {bytes} bytes, {least} to {most} are allowed")]
    BadRecord {
        /// The record's index in the request.
        record: usize,
        /// `id` or `body`.
        field: &'static str,
        /// The size of this field, in bytes.
        bytes: usize,
        /// Smallest size.
        least: usize,
        /// Largest size.
        most: usize,
    },
    /// The file system failed. Records of a failed append are refused, but may be drained all the same if the process
    /// ends before the next append.
    #[error("spool: {operation}: {reason}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The reason.
        reason: String,
    },
    /// The spool was closed. Records of an append may be stored.
    #[error("spool is closed")]
    Closed,
}

fn full(used: Size, set_aside: Size, needed: Size, limit: Size) -> String {
    if set_aside == Size(0) {
        return format!("{used} used and {needed} needed, at most {limit} are allowed");
    }
    format!(
        "{used} used, {set_aside} of it set aside, and {needed} needed, at most {limit} are allowed; `garenne-producer \
         spool show` lists what is set aside and how to free it"
    )
}

impl SpoolError {
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { operation, reason: error.to_string() }
    }
}
