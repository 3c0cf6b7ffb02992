//! Reads records in their order, one segment in memory at a time.

use super::{Log, loaded::Loaded};
use crate::{
    error::SpoolError,
    record::{Batch, Position},
};

/// A segment that cannot be read so many times in succession is passed over and set aside.
pub(super) const MAX_READ_FAILURES: u32 = 3;

impl Log {
    /// The records from `from` on that are not acknowledged: at most `max_records`, and at most `max_bytes` of ids and
    /// bodies unless the first record is larger. If a segment cannot be read, reading again goes on at the same
    /// record; after [`MAX_READ_FAILURES`] the segment is passed over.
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
            batch.end = segment.end.max(batch.end);
        }
        Ok(batch)
    }

    /// Reads a segment into memory, or what was added to it since. Afterwards `loaded` is this segment, unless it was
    /// passed over.
    fn load(&mut self, index: usize) -> Result<(), SpoolError> {
        let is_last = index + 1 == self.segments.len();
        let segment = &mut self.segments[index];
        if segment.read_failures >= MAX_READ_FAILURES {
            return Ok(());
        }
        let loaded = match Loaded::read(&*self.storage, segment, self.loaded.take()) {
            Ok(loaded) => loaded,
            Err(error) => {
                segment.read_failures += 1;
                if segment.read_failures == MAX_READ_FAILURES {
                    self.status.found_unreadable(segment);
                }
                return Err(SpoolError::Io { operation: "cannot read a segment", reason: error });
            }
        };
        let scan = loaded.scan();
        let was_bound = segment.end_is_bound;
        if was_bound {
            (segment.end, segment.end_is_bound) = (scan.next, false);
            segment.first_time = scan.entries.first().map(|entry| entry.milliseconds);
            if is_last {
                // No record has a position after it.
                self.status.end = segment.end.max(self.status.acknowledged);
            }
        }
        segment.read_failures = 0;
        if (!scan.damaged.is_empty() || scan.next < segment.end) && !segment.is_corrupt {
            self.status.found_corrupt(segment, scan);
        }
        self.loaded = Some(loaded);
        if was_bound {
            self.oldest = self.oldest_record();
        }
        Ok(())
    }
}
