//! A segment: its file name, and what is known of it without reading it again.

use crate::record::Position;

/// Suffix of segments that were set aside: corrupt ones, and records that cannot be published.
pub(crate) const SET_ASIDE: &str = ".set-aside";
const SUFFIX: &str = ".seg";
/// Before the suffix of a segment whose first position does not show where its predecessor ends.
const AFTER_GAP: &str = "-gap";

/// A segment on disk.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    /// The position of its first record.
    pub(crate) first: Position,
    /// The position after its last record.
    pub(crate) end: Position,
    /// `end` is only an upper bound: the segment could not be read when the spool was opened.
    pub(crate) end_is_bound: bool,
    /// Bytes that are durable. The file may be longer after a failed write.
    pub(crate) len: u64,
    /// When its first readable record was accepted, in milliseconds since the epoch.
    pub(crate) first_time: Option<u64>,
    /// A part of it is unreadable: it is set aside instead of removed.
    pub(crate) is_corrupt: bool,
    /// Consecutive failures to read it.
    pub(crate) read_failures: u32,
}

/// The parts of a segment's file name. Of two segments with the same first position, the one of the higher generation
/// counts: an append to the other one failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    /// The position of its first record.
    pub(crate) first: Position,
    pub(crate) generation: u32,
    /// `first` is above the last position of the segment before, which could not be read, or records between them were gone
    /// when it was created and were reported then.
    pub(crate) after_gap: bool,
}

impl SegmentName {
    /// The name of a file, also of one that was set aside.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let name = name.trim_end_matches(SET_ASIDE).strip_suffix(SUFFIX)?;
        let counted = name.strip_suffix(AFTER_GAP).unwrap_or(name);
        let (first, generation) = counted.split_once('-')?;
        let (first, generation) = (first.parse().ok()?, u32::from_str_radix(generation, 16).ok()?);
        Some(Self { first, generation, after_gap: counted != name })
    }

    /// The name of the file.
    pub(crate) fn file(self) -> String {
        let gap = if self.after_gap { AFTER_GAP } else { "" };
        format!("{:020}-{:08x}{gap}{SUFFIX}", self.first, self.generation)
    }
}

/// The names of the segments in a directory, in the order of their records.
pub(crate) fn sorted(names: &[String]) -> Vec<(SegmentName, &String)> {
    let segments = names.iter().filter(|name| !name.ends_with(SET_ASIDE));
    let mut segments: Vec<_> =
        segments.filter_map(|name| SegmentName::parse(name).map(|parsed| (parsed, name))).collect();
    segments.sort_unstable();
    segments
}
