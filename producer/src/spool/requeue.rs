//! `spool requeue`: puts the records of intact segments that were set aside back into the spool.

use std::{fs, path::Path, time::Duration};

use garenne_common::{
    config::Size,
    exit::{Exit, Failure},
};
use garenne_spool::{Record, Spool, SpoolConfig};
use serde::Serialize;

use crate::progress::print_summary;

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    event: &'static str,
    /// Records that wait again.
    pub(super) requeued: u64,
    /// Segments that are still set aside: corrupt ones, whose readable records were drained.
    pub(super) set_aside: usize,
}

/// Requeues everything, and writes a summary, one JSON line, to stdout.
pub(super) async fn run(directory: &Path) -> Result<Exit, Failure> {
    // Opening it would create it.
    super::inspect(directory)?;
    let opened = Spool::open(directory, unbounded()).await;
    let spool = opened.map_err(|error| Failure::new(Exit::Failed, error))?;
    let requeued = requeue(directory, &spool).await;
    spool.close().await;
    print_summary(&requeued?)?;
    Ok(Exit::Done)
}

/// The records are on the disk already, may be old, and may fill the spool's bound or the disk.
pub(super) fn unbounded() -> SpoolConfig {
    SpoolConfig {
        max_bytes: Size(u64::MAX),
        max_age: Duration::MAX,
        min_free: Size(0),
        ..SpoolConfig::default()
    }
}

/// Appends the records of each intact segment that was set aside, then removes its file. After a failure in between,
/// the records are in both places, under the same ids.
pub(super) async fn requeue(directory: &Path, spool: &Spool) -> Result<Summary, Failure> {
    let mut summary = Summary { event: "requeue_summary", ..Summary::default() };
    for (name, segment) in super::inspect(directory)?.segments() {
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, format_args!("{name}: {error}"));
        let segment = segment.map_err(|error| failed(&error))?;
        if !segment.is_set_aside() {
            continue;
        }
        if !segment.damaged().is_empty() {
            summary.set_aside += 1;
            continue;
        }
        let records: Vec<Record> = segment.records().map(|(_, record)| record).collect();
        let count = records.len() as u64;
        spool.append(records).await.map_err(|error| failed(&error))?;
        fs::remove_file(directory.join(name)).map_err(|error| failed(&error))?;
        summary.requeued += count;
    }
    Ok(summary)
}
