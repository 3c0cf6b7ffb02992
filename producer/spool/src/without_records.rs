//! Files with the name of a segment that have no record.

use std::io;

use crate::{
    frame::{FILE_HEADER, RECORD_HEADER, Scan, file_header, is_unfinished},
    record::Position,
    segment::SegmentName,
    storage::{Storage, read_range},
};

/// A file with the name of a segment and without a record.
pub(crate) struct WithoutRecord {
    pub(crate) name: String,
    pub(crate) first: Position,
    /// An append that did not end has left it. Otherwise it is a foreign file.
    pub(crate) is_unfinished: bool,
    /// The size of the file.
    pub(crate) bytes: u64,
}

/// Takes the files out of `segments` that have no record, and so say nothing about where the segment before them ends: what
/// follows all records, and what begins before the last record of another segment.
pub(crate) fn without_records(
    storage: &dyn Storage,
    segments: &mut Vec<(SegmentName, &String)>,
) -> Vec<WithoutRecord> {
    let mut found = Vec::new();
    for index in (0..segments.len()).rev() {
        let (SegmentName { first, .. }, name) = segments[index];
        let is_last = index + 1 == segments.len();
        if (index == 0 && !is_last) || has_record(storage, name, first) {
            continue;
        }
        let is_overlapping = || {
            let (before, name) = segments[index - 1];
            content(storage, name)
                .is_ok_and(|bytes| Scan::start(&bytes, before.first, first).is_ok_and(|scan| scan.beyond > 0))
        };
        if is_last || is_overlapping() {
            segments.remove(index);
            let bytes = content(storage, name);
            found.push(WithoutRecord {
                name: name.clone(),
                first,
                is_unfinished: bytes.as_ref().is_ok_and(|bytes| is_unfinished(bytes, first)),
                bytes: bytes.map_or(0, |bytes| bytes.len() as u64),
            });
        }
    }
    found
}

/// Whether a file has a record, readable or not. A file that cannot be read may have one.
fn has_record(storage: &dyn Storage, name: &str, first: Position) -> bool {
    let found = storage.open(name).and_then(|file| {
        let (len, mut bytes) = (file.len()?, Vec::new());
        let begin = (FILE_HEADER + RECORD_HEADER) as u64;
        read_range(&*file, 0, len.min(begin), &mut bytes)?;
        if let Some(record) = bytes.strip_prefix(&*file_header(first)) {
            return Ok(len >= begin && record.iter().any(|byte| *byte != 0));
        }
        read_range(&*file, begin, len, &mut bytes)?;
        Ok(Scan::start(&bytes, first, Position::MAX).map_or(true, |scan| !scan.entries.is_empty()))
    });
    found.unwrap_or(true)
}

/// The bytes of a file.
fn content(storage: &dyn Storage, name: &str) -> io::Result<Vec<u8>> {
    let (file, mut bytes) = (storage.open(name)?, Vec::new());
    read_range(&*file, 0, file.len()?, &mut bytes)?;
    Ok(bytes)
}
