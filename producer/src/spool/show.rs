//! `spool show`: what a spool contains.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use garenne_common::{
    config::Size,
    exit::{Exit, Failure},
    stdout::{print, print_line},
};
use garenne_spool::Inspection;
use serde::Serialize;

/// The document of `--json`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    directory: String,
    /// Readable records that wait.
    pub(super) records: usize,
    /// Size of the segments that wait.
    bytes: u64,
    /// Age of the oldest record that waits.
    oldest_seconds: Option<u64>,
    pub(super) set_aside: usize,
    /// Size of the segments that are set aside. It counts against `spool_max_bytes`.
    pub(super) set_aside_bytes: u64,
    pub(super) segments: Vec<SegmentRow>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct SegmentRow {
    name: String,
    bytes: u64,
    /// Readable records that wait; in one that was set aside, all readable records.
    pub(super) records: usize,
    set_aside: bool,
    pub(super) corrupt: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

const SET_ASIDE_HELP: &str = "\
What is set aside counts against spool_max_bytes and is never removed. To free it: `garenne-producer spool requeue` puts
intact segments back into the spool, while no other process uses it; `spool export --set-aside` prints all readable
records, and then the files can be removed, also while a gateway runs.
";

/// Prints the summary.
pub(super) fn run(directory: &Path, inspection: &Inspection, json: bool) -> Result<Exit, Failure> {
    let summary = summary(directory, inspection, SystemTime::now());
    if json {
        print_line(serde_json::to_string(&summary).expect("a summary is plain JSON"))?;
    } else {
        print(text(&summary))?;
    }
    Ok(Exit::Done)
}

/// Summarizes the spool's contents.
pub(super) fn summary(directory: &Path, inspection: &Inspection, now: SystemTime) -> Summary {
    let mut summary = Summary { directory: directory.display().to_string(), ..Summary::default() };
    for (name, segment) in inspection.segments() {
        let mut row = SegmentRow {
            name: name.to_owned(),
            bytes: 0,
            records: 0,
            set_aside: Inspection::is_set_aside(name),
            corrupt: true,
            error: None,
        };
        match segment {
            Err(error) => row.error = Some(error.to_string()),
            Ok(segment) => {
                row.bytes = segment.bytes();
                row.records = segment.records().count();
                row.corrupt = segment.is_corrupt();
                if !row.set_aside
                    && let Some((_, oldest)) = segment.records().next()
                {
                    let age = now.duration_since(oldest.time).unwrap_or_default().as_secs();
                    summary.oldest_seconds.get_or_insert(age);
                }
            }
        }
        if row.set_aside {
            summary.set_aside += 1;
            summary.set_aside_bytes += row.bytes;
        } else {
            summary.records += row.records;
            summary.bytes += row.bytes;
        }
        summary.segments.push(row);
    }
    summary
}

pub(super) fn text(summary: &Summary) -> String {
    let Summary { directory, records, bytes, oldest_seconds, set_aside, set_aside_bytes, segments } = summary;
    let waiting = segments.len() - set_aside;
    let oldest = oldest_seconds.map_or_else(
        || "none waits".to_owned(),
        |seconds| {
            format!("the oldest waits for {}", humantime::format_duration(Duration::from_secs(seconds)))
        },
    );
    let mut text = format!(
        "{directory}: {records} records, {oldest}; {waiting} segments with {}, {set_aside} set aside with {}\n",
        Size(*bytes),
        Size(*set_aside_bytes)
    );
    for SegmentRow { name, bytes, records, corrupt, error, .. } in segments {
        let state = match error {
            Some(error) => format!("  unreadable: {error}"),
            None if *corrupt => "  corrupt".to_owned(),
            None => String::new(),
        };
        text += &format!("  {name}  {records} records  {}{state}\n", Size(*bytes));
    }
    if *set_aside > 0 {
        text += SET_ASIDE_HELP;
    }
    text
}
