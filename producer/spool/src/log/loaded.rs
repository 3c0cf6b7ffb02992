//! A segment in memory.

use crate::{
    frame::{Entry, Scan},
    record::{Position, Record},
    segment::Segment,
    storage::{Storage, read_range},
};

/// A segment in memory.
pub(super) struct Loaded {
    name: String,
    bytes: Vec<u8>,
    scan: Scan,
}

impl Loaded {
    /// Reads a segment, or what was added to it since `earlier` was read. Fails also if its format version is
    /// unknown.
    pub(super) fn read(
        storage: &dyn Storage,
        segment: &Segment,
        earlier: Option<Self>,
    ) -> Result<Self, String> {
        let earlier = earlier.filter(|loaded| loaded.is(segment));
        let (mut bytes, scan) = earlier.map_or_else(Default::default, |it| (it.bytes, Some(it.scan)));
        if (bytes.len() as u64) < segment.len {
            let file = storage.open(&segment.name).map_err(|error| error.to_string())?;
            let from = bytes.len() as u64;
            read_range(&*file, from, segment.len, &mut bytes).map_err(|error| error.to_string())?;
        }
        let scan = match scan {
            Some(mut scan) => {
                scan.extend(&bytes);
                scan
            }
            None => Scan::start(&bytes, segment.first, Position::MAX)
                .map_err(|version| format!("unknown format version {version}"))?,
        };
        Ok(Self { name: segment.name.clone(), bytes, scan })
    }

    pub(super) fn is(&self, segment: &Segment) -> bool {
        self.name == segment.name
    }

    pub(super) fn scan(&self) -> &Scan {
        &self.scan
    }

    /// The readable records in this range of positions.
    pub(super) fn entries(&self, from: Position, end: Position) -> &[Entry] {
        let index = |position| self.scan.entries.partition_point(|entry| entry.position < position);
        &self.scan.entries[index(from)..index(end.max(from))]
    }

    pub(super) fn record(&self, entry: &Entry) -> Record {
        entry.record(&self.bytes)
    }
}
