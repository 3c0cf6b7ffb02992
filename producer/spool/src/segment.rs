//! A segment: its file name, and what is known of it without reading it again.

use crate::record::Position;

/// Suffix of segments that were set aside: corrupt ones, and records that cannot be published.
pub(crate) const SET_ASIDE: &str = ".set-aside";
const SUFFIX: &str = ".seg";

/// A segment on disk.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    /// The position of its first record.
    pub(crate) first: Position,
    /// The position after its last record.
    pub(crate) end: Position,
    /// Bytes that are durable. The file may be longer after a failed write.
    pub(crate) len: u64,
    /// When its first readable record was accepted, in milliseconds since the epoch.
    pub(crate) first_time: Option<u64>,
    /// A part of it is unreadable: it is set aside instead of removed.
    pub(crate) is_corrupt: bool,
    /// Consecutive failures to read it.
    pub(crate) read_failures: u32,
}

/// The file name of a segment. Of two segments with the same first position, the one of the higher generation counts:
/// an append to the other one failed.
pub(crate) fn name(first: Position, generation: u32) -> String {
    format!("{first:020}-{generation:08x}{SUFFIX}")
}

/// First position and generation in the name of a segment, also of one that was set aside.
pub(crate) fn parse_name(name: &str) -> Option<(Position, u32)> {
    let (first, generation) = name.trim_end_matches(SET_ASIDE).strip_suffix(SUFFIX)?.split_once('-')?;
    Some((first.parse().ok()?, u32::from_str_radix(generation, 16).ok()?))
}

/// The names of the segments in a directory, in the order of their records.
pub(crate) fn sorted(names: &[String]) -> Vec<(Position, u32, &String)> {
    let segments = names.iter().filter(|name| !name.ends_with(SET_ASIDE));
    let mut segments: Vec<_> = segments
        .filter_map(|name| parse_name(name).map(|(first, generation)| (first, generation, name)))
        .collect();
    segments.sort_unstable();
    segments
}
