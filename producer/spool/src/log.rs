//! The segment log: accepts, reads and acknowledges records. Everything here blocks; one thread owns it.
//!
//! Possible losses, and what prevents them:
//! - An accepted record: accepted means that its bytes, and the directory entry of a new segment, were synced.
//! - A record after a failed write or fsync: the segment is closed, and later records go to a new one, whose first
//!   position is that of the first refused record. What the closed segment has from there on is cut before.
//! - Records that were cut off the newest segment: the cursor has the position after the last durable one, so that they are
//!   noticed, and nothing more is cut.
//! - The records of a segment, because a foreign file looks like the next one: a segment with intact records at positions
//!   of the next one is kept.
//! - A record that gets an acknowledged position: positions never fall below the cursor.

mod append;
mod loaded;
mod open;
mod read;

use std::{
    collections::VecDeque,
    io,
    time::{Duration, SystemTime},
};

use crate::{
    config::SpoolConfig,
    cursor::{Cursor, Newest, Stored},
    error::SpoolError,
    record::{Position, time},
    segment::{SET_ASIDE, Segment},
    status::SpoolStatus,
    storage::{File, Storage},
};
use loaded::Loaded;

/// An open spool.
pub(crate) struct Log {
    storage: Box<dyn Storage>,
    config: SpoolConfig,
    /// Oldest first.
    segments: VecDeque<Segment>,
    /// The file of the last segment, if records may be appended to it. A segment of an earlier process, or one with a
    /// failed write, never grows.
    active: Option<Box<dyn File>>,
    /// What a failed append left on the disk. It is removed before the next segment begins: after a restart that segment
    /// would show it as overlapped.
    leftover: Option<Leftover>,
    /// The generation of the next segment.
    generation: u32,
    cursor: Cursor,
    /// The segment that was read last.
    loaded: Option<Loaded>,
    status: SpoolStatus,
    /// When the oldest record that is not acknowledged was accepted, in milliseconds since the epoch.
    oldest: Option<u64>,
}

/// Bytes that do not count.
enum Leftover {
    /// Those of a segment from this length on.
    Tail(Box<dyn File>, u64),
    Segment(String),
}

impl Log {
    pub(crate) fn status(&self) -> SpoolStatus {
        SpoolStatus {
            bytes: self.bytes(),
            segments: self.segments.len(),
            waiting: self.records_between(self.status.acknowledged, Position::MAX),
            oldest: self.oldest.map(time),
            ..self.status.clone()
        }
    }

    /// Counts the segments that are set aside. An operator may remove them while the spool is open. If the directory
    /// cannot be read, the earlier numbers are kept.
    pub(crate) fn recount_set_aside(&mut self) -> Result<(), SpoolError> {
        let failed = SpoolError::io("cannot read the segments that are set aside");
        let counted = self.storage.list().and_then(|names| sizes_of_set_aside(&*self.storage, &names));
        let (segments, bytes) = counted.map_err(failed)?;
        (self.status.set_aside, self.status.set_aside_bytes) = (segments, bytes);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// The number of records with positions from `from` to before `end`. Some positions may have no record.
    fn records_between(&self, from: Position, end: Position) -> u64 {
        let within = |segment: &Segment| segment.end.min(end).saturating_sub(segment.first.max(from));
        self.segments.iter().map(within).sum()
    }

    fn age(&self, now: SystemTime) -> Duration {
        let oldest = self.oldest.map(time).unwrap_or(now);
        Duration::from_secs(now.duration_since(oldest).unwrap_or_default().as_secs())
    }

    /// Acknowledges all records before `position`, and removes the segments that have no others. If it fails, the
    /// position is not durable, and the records may come again after a restart.
    pub(crate) fn ack(&mut self, position: Position) -> Result<(), SpoolError> {
        let position = position.min(self.status.end);
        if position <= self.status.acknowledged {
            return Ok(());
        }
        self.status.drained += self.records_between(self.status.acknowledged, position);
        self.status.acknowledged = position;
        let stored = self.cursor.store(&*self.storage, self.position());
        if stored.is_ok() {
            // A segment that is gone while the cursor is before it would count as missing after a restart.
            self.retire();
        }
        self.oldest = self.oldest_record();
        stored.map_err(SpoolError::io("cannot write the cursor"))
    }

    /// What the cursor is to say. The segments of a drained spool are removed after it is stored.
    fn position(&self) -> Stored {
        let SpoolStatus { acknowledged, end, .. } = self.status;
        let newest = self.segments.back().filter(|_| acknowledged < end).map(|segment| Newest {
            first: segment.first,
            // A bound says nothing about what is durable.
            end: if segment.end_is_bound { segment.first + 1 } else { segment.end },
        });
        Stored { position: acknowledged, newest }
    }

    /// Removes the segments whose records are all acknowledged; a corrupt one is renamed and kept.
    fn retire(&mut self) {
        if self.status.acknowledged == self.status.end {
            self.active = None;
        }
        while let Some(segment) = self.segments.front() {
            let grows = self.active.is_some() && self.segments.len() == 1;
            if segment.end > self.status.acknowledged || grows {
                return;
            }
            let name = &segment.name;
            let retired = match segment.is_corrupt {
                true => self.storage.rename(name, &format!("{name}{SET_ASIDE}")),
                false => self.storage.remove(name),
            };
            if let Err(error) = retired {
                tracing::warn!(segment = name, %error, "cannot remove a drained spool segment, trying again later");
                return;
            }
            if segment.is_corrupt {
                self.status.set_aside += 1;
                // The file may be longer than its records.
                let size = self.storage.size(&format!("{name}{SET_ASIDE}"));
                self.status.set_aside_bytes += size.unwrap_or(segment.len);
            }
            // Its memory is free while the spool is empty.
            self.loaded.take_if(|loaded| loaded.is(segment));
            self.segments.pop_front();
        }
    }

    /// When the first record that is not acknowledged was accepted. The present value if that is not known without
    /// reading: it is older.
    fn oldest_record(&self) -> Option<u64> {
        let acknowledged = self.status.acknowledged;
        let mut waiting = self.segments.iter().filter(|segment| segment.end > acknowledged);
        let segment = waiting.next()?;
        let time = if segment.first >= acknowledged {
            segment.first_time
        } else {
            let loaded = self.loaded.as_ref().filter(|loaded| loaded.is(segment));
            let entry = loaded.and_then(|loaded| loaded.entries(acknowledged, segment.end).first());
            entry.map(|entry| entry.milliseconds).or(self.oldest)
        };
        // A segment may have no readable record.
        time.or_else(|| waiting.find_map(|segment| segment.first_time))
    }
}

/// The number and the size of the segments that are set aside. One that is removed meanwhile does not count.
fn sizes_of_set_aside(storage: &dyn Storage, names: &[String]) -> io::Result<(usize, u64)> {
    let mut counted = (0, 0);
    for name in names.iter().filter(|name| name.ends_with(SET_ASIDE)) {
        match storage.size(name) {
            Ok(size) => counted = (counted.0 + 1, counted.1 + size),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(counted)
}
