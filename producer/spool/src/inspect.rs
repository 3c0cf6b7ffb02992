//! Looks at a spool without its lock and without changes, also while a process uses it.

use std::{io, path::Path};

use crate::{
    cursor,
    frame::Scan,
    record::{Position, Record},
    segment::{SET_ASIDE, parse_name, sorted},
    storage::{Storage, disk::Directory, read_range},
};

/// A spool as its files show it.
pub struct Inspection {
    directory: Directory,
    acknowledged: Position,
    /// Name, first position, and the first position of the next segment; those that were set aside come last.
    segments: Vec<(String, Position, Position)>,
}

impl Inspection {
    /// Reads the names of the segments and the acknowledged position.
    ///
    /// # Errors
    /// The directory does not exist or cannot be read.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let directory = Directory::read_only(directory);
        let names = directory.list()?;
        let acknowledged = match names.iter().any(|name| name == cursor::NAME) {
            true => cursor::stored(&*directory.open(cursor::NAME)?)?.0,
            false => 0,
        };
        let live = sorted(&names);
        let next = live.iter().skip(1).map(|(first, ..)| *first).chain([Position::MAX]);
        let mut segments: Vec<_> =
            live.iter().zip(next).map(|((first, _, name), next)| ((*name).clone(), *first, next)).collect();
        let set_aside = names.iter().filter(|name| name.ends_with(SET_ASIDE));
        let mut set_aside: Vec<_> = set_aside
            .filter_map(|name| parse_name(name).map(|(first, _)| (name.clone(), first, Position::MAX)))
            .collect();
        set_aside.sort_unstable();
        segments.extend(set_aside);
        Ok(Self { directory, acknowledged, segments })
    }

    /// Records before this position are acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> Position {
        self.acknowledged
    }

    /// Reads the segments one by one: the waiting ones in the order of their records, then those that were set aside.
    /// A segment that was drained meanwhile is left out.
    pub fn segments(&self) -> impl Iterator<Item = (&str, io::Result<InspectedSegment>)> {
        self.segments.iter().filter_map(|(name, first, limit)| match self.read(name, *first, *limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some((name.as_str(), read)),
        })
    }

    fn read(&self, name: &str, first: Position, limit: Position) -> io::Result<InspectedSegment> {
        let file = self.directory.open(name)?;
        let mut bytes = Vec::new();
        read_range(&*file, 0, file.len()?, &mut bytes)?;
        let scan = Scan::start(&bytes, first, limit)
            .map_err(|version| io::Error::other(format!("unknown format version {version}")))?;
        let is_set_aside = name.ends_with(SET_ASIDE);
        let acknowledged = if is_set_aside { 0 } else { self.acknowledged };
        Ok(InspectedSegment { bytes, scan, first, limit, acknowledged, is_set_aside })
    }
}

/// A segment in memory.
pub struct InspectedSegment {
    bytes: Vec<u8>,
    scan: Scan,
    first: Position,
    limit: Position,
    acknowledged: Position,
    is_set_aside: bool,
}

impl InspectedSegment {
    /// Whether it was set aside: it is corrupt and its readable records were drained, or its records cannot be published.
    #[must_use]
    pub fn is_set_aside(&self) -> bool {
        self.is_set_aside
    }

    /// Size of the file, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The position of its first record.
    #[must_use]
    pub fn first(&self) -> Position {
        self.first
    }

    /// The readable records that are not acknowledged; in a segment that was set aside, all readable records.
    pub fn records(&self) -> impl Iterator<Item = (Position, Record)> {
        let waiting = self.scan.entries.iter().filter(|entry| entry.position >= self.acknowledged);
        waiting.map(|entry| (entry.position, entry.record(&self.bytes)))
    }

    /// The number of readable records, also of acknowledged ones.
    #[must_use]
    pub fn readable(&self) -> usize {
        self.scan.entries.len()
    }

    /// Offsets of unreadable bytes.
    #[must_use]
    pub fn damaged(&self) -> &[usize] {
        &self.scan.damaged
    }

    /// The offset of an append that did not end, or that is being written now. It is no corruption.
    #[must_use]
    pub fn torn(&self) -> Option<usize> {
        Some(self.scan.end).filter(|&end| end < self.bytes.len() && self.damaged().is_empty())
    }

    /// The number of records that the next segment shows to be missing at the end, without acknowledged ones.
    #[must_use]
    pub fn missing(&self) -> u64 {
        match self.limit {
            Position::MAX => 0,
            limit => limit.saturating_sub(self.scan.next.max(self.acknowledged)),
        }
    }
}
