//! Looks at a spool without its lock and without changes, also while a process uses it.

use std::{io, path::Path};

use crate::{
    cursor::{self, Stored},
    frame::Scan,
    record::{Position, Record},
    segment::{SET_ASIDE, SegmentName, sorted},
    storage::{Storage, disk::Directory, read_range},
    without_records::{WithoutRecord, without_records},
};

/// A spool as its files show it.
pub struct Inspection {
    directory: Directory,
    acknowledged: Position,
    /// As `acknowledged`, before the directory was listed: segments that existed then reach it.
    drained: Position,
    missing: u64,
    without_records: Vec<WithoutRecord>,
    /// Those that were set aside come last.
    segments: Vec<SegmentFile>,
}

struct SegmentFile {
    name: String,
    first: Position,
    /// The position after its last durable record, as the next segment or the cursor shows it; 0 if neither does.
    end: Position,
    /// The segment after it.
    next: Option<SegmentName>,
}

impl Inspection {
    /// Reads the names of the segments and the acknowledged position.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let directory = Directory::read_only(directory);
        // A process may use the spool: what the cursor showed before is in the files, unless it was acknowledged since.
        let earlier = stored(&directory)?;
        let names = directory.list()?;
        let position = stored(&directory)?.map(|Stored { position, .. }| {
            let newest = earlier.and_then(|it| it.newest).filter(|newest| newest.end > position);
            Stored { position, newest }
        });
        let acknowledged = position.unwrap_or_default().position;
        let drained = earlier.unwrap_or_default().position;
        let mut live = sorted(&names);
        let without_records = without_records(&directory, &mut live);
        let [first, last] = [live.first(), live.last()].map(|it| it.map(|(name, _)| name));
        let missing = cursor::missing(first, last, position);
        let segment = |parsed: SegmentName, name: &String, next: Option<SegmentName>| SegmentFile {
            name: name.clone(),
            first: parsed.first,
            end: 0,
            next,
        };
        let next = live.iter().skip(1).map(|(next, _)| Some(*next)).chain([None]);
        let mut segments: Vec<_> = live
            .iter()
            .zip(next)
            .map(|((parsed, name), next)| SegmentFile {
                end: cursor::shown_end(parsed.first, next, position).unwrap_or(0),
                ..segment(*parsed, name, next)
            })
            .collect();
        let set_aside = names.iter().filter(|name| Self::is_set_aside(name));
        let mut set_aside: Vec<_> =
            set_aside.filter_map(|name| SegmentName::parse(name).map(|parsed| (parsed, name))).collect();
        set_aside.sort_unstable();
        segments.extend(set_aside.into_iter().map(|(parsed, name)| segment(parsed, name, None)));
        Ok(Self { directory, acknowledged, drained, missing, without_records, segments })
    }

    /// Records before this position are acknowledged.
    pub fn acknowledged(&self) -> Position {
        self.acknowledged
    }

    /// The files with the name of a segment that have no record and are left out, and whether an append that did not end has
    /// left them. Others are foreign.
    pub fn without_records(&self) -> impl Iterator<Item = (&str, bool)> {
        self.without_records.iter().map(|file| (file.name.as_str(), file.is_unfinished))
    }

    /// The number of records that were not acknowledged and whose segments are missing.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Reads the segments one by one: the waiting ones in the order of their records, then those that were set aside.
    /// A segment that was drained meanwhile is left out.
    pub fn segments(&self) -> impl Iterator<Item = (&str, io::Result<InspectedSegment>)> {
        self.segments.iter().filter_map(|segment| match self.read(segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some((segment.name.as_str(), read)),
        })
    }

    /// Whether a segment of this name was set aside. It holds also for a file that cannot be read.
    pub fn is_set_aside(name: &str) -> bool {
        name.ends_with(SET_ASIDE)
    }

    fn read(&self, segment: &SegmentFile) -> io::Result<InspectedSegment> {
        let SegmentFile { ref name, first, end, next } = *segment;
        let limit = next.map_or(Position::MAX, |next| next.first);
        let file = self.directory.open(name)?;
        let mut bytes = Vec::new();
        read_range(&*file, 0, file.len()?, &mut bytes)?;
        let scan = Scan::start(&bytes, first, limit)
            .map_err(|version| io::Error::other(format!("unknown format version {version}")))?;
        let is_set_aside = Self::is_set_aside(name);
        let acknowledged = if is_set_aside { 0 } else { self.acknowledged };
        let is_detached = !is_set_aside && cursor::is_detached(scan.next, next, self.drained);
        Ok(InspectedSegment { bytes, scan, first, end, acknowledged, is_set_aside, is_detached })
    }
}

/// A segment in memory.
pub struct InspectedSegment {
    bytes: Vec<u8>,
    scan: Scan,
    first: Position,
    /// As that of [`SegmentFile`].
    end: Position,
    acknowledged: Position,
    is_set_aside: bool,
    is_detached: bool,
}

impl InspectedSegment {
    /// Whether it was set aside: it is corrupt and its readable records were drained, or its records cannot be published.
    pub fn is_set_aside(&self) -> bool {
        self.is_set_aside
    }

    /// Size of the file, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The position of its first record.
    pub fn first(&self) -> Position {
        self.first
    }

    /// The readable records that are not acknowledged; in a segment that was set aside, all readable records.
    pub fn records(&self) -> impl Iterator<Item = (Position, Record)> {
        let waiting = self.scan.entries.iter().filter(|entry| entry.position >= self.acknowledged);
        waiting.map(|entry| (entry.position, entry.record(&self.bytes)))
    }

    /// The number of readable records, also of acknowledged ones.
    pub fn readable(&self) -> usize {
        self.scan.entries.len()
    }

    /// Whether a part of it is unreadable, is missing, or has the positions of the next segment, or it may be foreign.
    pub fn is_corrupt(&self) -> bool {
        !self.damaged().is_empty() || self.missing() > 0 || self.overlapped() > 0 || self.is_detached
    }

    /// Whether its records end before the acknowledged position and before the next segment. It may be a foreign file.
    pub fn is_detached(&self) -> bool {
        self.is_detached
    }

    /// Offsets of unreadable bytes.
    pub fn damaged(&self) -> &[usize] {
        &self.scan.damaged
    }

    /// The number of intact records at positions that the next segment has too. It may be a foreign file.
    pub fn overlapped(&self) -> u64 {
        self.scan.beyond
    }

    /// The offset of an append that did not end, or that is being written now. It is no corruption.
    pub fn torn(&self) -> Option<usize> {
        let is_torn = self.scan.end < self.bytes.len() && !self.is_corrupt();
        is_torn.then_some(self.scan.end)
    }

    /// The number of records that the next segment or the cursor shows to be missing at the end, without acknowledged ones.
    pub fn missing(&self) -> u64 {
        self.end.saturating_sub(self.scan.next.max(self.acknowledged))
    }
}

/// What the cursor says; `None` if it does not exist or is not valid.
fn stored(directory: &Directory) -> io::Result<Option<Stored>> {
    match directory.open(cursor::NAME) {
        Ok(file) => Ok(cursor::stored(&*file)?.map(|(stored, _)| stored)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
