//! Counts of a spool's contents.

use std::time::{Duration, Instant, SystemTime};

use crate::{frame::Scan, record::Position, segment::Segment};

/// The state of a spool, and counts since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// Size of the segments, in bytes, without those that were set aside.
    pub bytes: u64,
    /// Number of segments.
    pub segments: usize,
    /// Records before this position are acknowledged.
    pub acknowledged: Position,
    /// The position of the next record.
    pub end: Position,
    /// Number of records that are not acknowledged, with those that are unreadable. An upper bound while a segment
    /// cannot be read.
    pub(crate) waiting: u64,
    /// When the oldest record that is not acknowledged was accepted.
    pub oldest: Option<SystemTime>,
    /// Number of segments that are set aside, also before the spool was opened.
    pub set_aside: usize,
    /// Size of these segments, in bytes. It counts against `max_bytes`.
    pub set_aside_bytes: u64,
    /// The bound of `bytes` and `set_aside_bytes` together.
    pub max_bytes: u64,
    /// Records accepted.
    pub accepted: u64,
    /// Records refused.
    pub refused: u64,
    /// Why the last request was refused, and when; `None` if it was accepted.
    pub refusal: Option<(String, Instant)>,
    /// Records acknowledged, with those that were unreadable.
    pub drained: u64,
    /// Records that could not be read. A damaged end of the last segment counts as one record: it does not tell how many
    /// it were.
    pub unreadable: u64,
    /// Segments that were found to be corrupt or unreadable. A torn tail is no corruption.
    pub corrupt: u64,
    /// Records that were set aside because they can never be published.
    pub unpublishable: u64,
}

impl SpoolStatus {
    /// The number of records that are not acknowledged.
    pub fn records(&self) -> u64 {
        self.waiting
    }

    /// Counts and reports a segment of which a part is unreadable.
    pub(crate) fn found_corrupt(&mut self, segment: &mut Segment, scan: &Scan) {
        let missing = scan.missing(segment.first, segment.end);
        self.unreadable += missing;
        self.corrupt += 1;
        segment.is_corrupt = true;
        let (offset, readable) = (scan.damaged.first().copied().unwrap_or(scan.end), scan.entries.len());
        tracing::error!(
            segment = segment.name,
            offset,
            readable,
            missing,
            "a spool segment is corrupt: its readable records are drained, then it is set aside"
        );
    }

    /// Counts and reports records that are not acknowledged and whose segments are gone.
    pub(crate) fn found_missing(&mut self, records: u64) {
        self.unreadable += records;
        self.corrupt += 1;
        tracing::error!(
            records,
            "spool segments are missing with at least this many records that were not published"
        );
    }

    /// Counts and reports a segment with intact records at positions that the next segment has too.
    pub(crate) fn found_overlapped(&mut self, segment: &mut Segment, scan: &Scan) {
        self.unreadable += scan.beyond;
        self.corrupt += u64::from(!segment.is_corrupt);
        segment.is_corrupt = true;
        tracing::error!(
            segment = segment.name,
            records = scan.beyond,
            next = segment.end,
            "the next spool segment begins before the end of this one, and may be a foreign file: the segment is set \
             aside with these records when the others are drained"
        );
    }

    /// Counts and reports a segment before the cursor that is not known to be drained.
    pub(crate) fn found_detached(&mut self, segment: &mut Segment) {
        let records = segment.end - segment.first;
        self.unreadable += records;
        self.corrupt += u64::from(!segment.is_corrupt);
        segment.is_corrupt = true;
        tracing::error!(
            segment = segment.name,
            records,
            "a spool segment ends before the acknowledged position, and may be a foreign file: it is set aside"
        );
    }

    /// Counts and reports a segment that is passed over. If its end is only a bound, the number of its records is
    /// unknown, and it counts as one record.
    pub(crate) fn found_unreadable(&mut self, segment: &mut Segment) {
        let most = segment.end - segment.first;
        if !segment.is_corrupt {
            self.unreadable += if segment.end_is_bound { most.min(1) } else { most };
            self.corrupt += 1;
            segment.is_corrupt = true;
        }
        let is_exact = !segment.end_is_bound;
        tracing::error!(
            segment = segment.name,
            most_records = most,
            is_exact,
            "a spool segment cannot be read and is set aside"
        );
    }

    /// The age of the oldest record that is not acknowledged.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        self.oldest.map(|oldest| now.duration_since(oldest).unwrap_or_default())
    }
}
