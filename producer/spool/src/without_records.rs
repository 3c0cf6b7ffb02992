//! Files with the name of a segment that have no record.

use std::io;

use crate::{
    frame::{FILE_HEADER, RECORD_HEADER, Scan, file_header},
    record::Position,
    segment::SegmentName,
    storage::{Storage, read_range},
};

/// Takes the files out of `segments` that have no record, and so say nothing about where the segment before them ends: what
/// follows all records, and what begins before the last record of another segment.
pub(crate) fn without_records(
    storage: &dyn Storage,
    segments: &mut Vec<(SegmentName, &String)>,
) -> Vec<(String, Position)> {
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
            found.push((name.clone(), first));
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
pub(crate) fn content(storage: &dyn Storage, name: &str) -> io::Result<Vec<u8>> {
    let (file, mut bytes) = (storage.open(name)?, Vec::new());
    read_range(&*file, 0, file.len()?, &mut bytes)?;
    Ok(bytes)
}
