//! Reads records in their order, one segment in memory at a time.

use super::{Log, loaded::Loaded};
use crate::{
    error::SpoolError,
    frame::Scan,
    record::{Batch, Position},
};

/// A segment that cannot be read so many times in succession is passed over and set aside.
pub(super) const MAX_READ_FAILURES: u32 = 3;

impl Log {
    /// The records from `from` on that are not acknowledged: at most `max_records`, and at most `max_bytes` of ids and
    /// bodies unless the first record is larger.
    ///
    /// # Errors
    /// A segment cannot be read. Reading again goes on at the same record; after [`MAX_READ_FAILURES`] the segment is
    /// passed over.
    pub(crate) fn read(
        &mut self,
        from: Position,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, SpoolError> {
        let from = from.max(self.status.acknowledged);
        let mut batch = Batch { end: from, records: Vec::new() };
        let mut bytes = 0;
        while let Some(index) = self.segments.iter().position(|segment| segment.end > batch.end) {
            match self.load(index) {
                Ok(()) => {}
                Err(_) if !batch.records.is_empty() => return Ok(batch),
                Err(error) => return Err(error),
            }
            let segment = &self.segments[index];
            if let Some(loaded) = self.loaded.as_ref().filter(|loaded| loaded.is(segment)) {
                for entry in loaded.entries(batch.end, segment.end) {
                    bytes += entry.content_len();
                    let is_full = batch.records.len() >= max_records || bytes > max_bytes;
                    if is_full && !batch.records.is_empty() {
                        return Ok(batch);
                    }
                    batch.records.push(loaded.record(entry));
                    batch.end = entry.position + 1;
                }
            }
            batch.end = segment.end;
        }
        Ok(batch)
    }

    /// Reads a segment into memory, or what was added to it since. Afterwards `loaded` is this segment, unless it was
    /// passed over.
    fn load(&mut self, index: usize) -> Result<(), SpoolError> {
        let segment = &mut self.segments[index];
        if segment.read_failures >= MAX_READ_FAILURES {
            return Ok(());
        }
        let loaded = match Loaded::read(&*self.storage, segment, self.loaded.take()) {
            Ok(loaded) => loaded,
            Err(error) => {
                segment.read_failures += 1;
                if segment.read_failures == MAX_READ_FAILURES {
                    let (name, records) = (&segment.name, segment.end - segment.first);
                    tracing::error!(
                        segment = name,
                        records,
                        "a spool segment is unreadable and is set aside"
                    );
                    self.status.unreadable += if segment.is_corrupt { 0 } else { records };
                    segment.is_corrupt = true;
                }
                return Err(SpoolError::Io { operation: "cannot read a segment", reason: error });
            }
        };
        let scan = loaded.scan();
        // The end of a segment that could not be read when the spool was opened is only an upper bound.
        let is_complete = scan.next >= segment.end || segment.read_failures > 0;
        let is_whole = scan.damaged.is_empty() && is_complete;
        segment.read_failures = 0;
        if !is_whole && !segment.is_corrupt {
            segment.is_corrupt = true;
            let missing = (segment.end - segment.first).saturating_sub(scan.entries.len() as u64);
            self.status.unreadable += missing;
            report_corrupt(&segment.name, scan, missing);
        }
        self.loaded = Some(loaded);
        Ok(())
    }
}

/// Logs that a segment is corrupt.
pub(super) fn report_corrupt(name: &str, scan: &Scan, missing: u64) {
    let (offset, readable) = (scan.damaged.first().copied().unwrap_or(scan.end), scan.entries.len());
    tracing::error!(
        segment = name,
        offset,
        readable,
        missing,
        "a spool segment is corrupt: its readable records are drained, then it is set aside"
    );
}
