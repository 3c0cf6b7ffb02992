//! Accepts records: one write and one fsync for several requests.

use std::{
    io,
    time::{Instant, SystemTime},
};

use garenne_common::config::Size;

use super::{Leftover, Log};
use crate::{
    error::SpoolError,
    frame::{FILE_HEADER, file_header, frame_len, write},
    record::{Record, milliseconds},
    segment::{SET_ASIDE, Segment, SegmentName},
    storage::{File, write_all},
};

impl Log {
    /// Appends the records of several requests with one fsync. Returns an outcome per request: all of its records are
    /// durable, or none counts.
    pub(crate) fn append(
        &mut self,
        requests: &[Vec<Record>],
        now: SystemTime,
    ) -> Vec<Result<(), SpoolError>> {
        let mut bytes = Vec::new();
        let (start, mut next) = (self.status.end, self.status.end);
        let mut outcomes: Vec<Result<(), SpoolError>> = Vec::with_capacity(requests.len());
        let free = self.storage.free();
        let all = requests.iter().flatten().map(frame_len).sum::<u64>() + FILE_HEADER as u64;
        if self.status.set_aside > 0
            && self.used() + all > self.config.max_bytes.0
            && let Err(error) = self.recount_set_aside()
        {
            tracing::warn!(%error, "the size of the segments that are set aside may be outdated");
        }
        for records in requests {
            let outcome = self.admit(records, bytes.len() as u64, &free, now);
            if outcome.is_ok() {
                for record in records {
                    write(&mut bytes, next, record);
                    next += 1;
                }
            }
            outcomes.push(outcome);
        }
        let first_time = || {
            let accepted = requests.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
            accepted.flat_map(|(records, _)| records).next().map(|record| milliseconds(record.time))
        };
        if next > start {
            let first_time = first_time();
            match self.commit(&bytes, next, first_time) {
                Ok(()) => self.oldest = self.oldest.or(first_time),
                Err(error) => outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| {
                    *outcome = Err(error.clone());
                }),
            }
        }
        for (records, outcome) in requests.iter().zip(&outcomes) {
            let count = if outcome.is_ok() { &mut self.status.accepted } else { &mut self.status.refused };
            *count += records.len() as u64;
        }
        match outcomes.last() {
            Some(Err(SpoolError::BadRecord { .. })) | None => {}
            Some(Err(error)) => self.status.refusal = Some((error.to_string(), Instant::now())),
            Some(Ok(())) => self.status.refusal = None,
        }
        outcomes
    }

    /// Bytes that count against the bound.
    fn used(&self) -> u64 {
        self.bytes() + self.status.set_aside_bytes
    }

    /// Checks the bounds for the records of a request, behind `pending` bytes of other requests.
    fn admit(
        &self,
        records: &[Record],
        pending: u64,
        free: &io::Result<u64>,
        now: SystemTime,
    ) -> Result<(), SpoolError> {
        for (index, Record { id, body, .. }) in records.iter().enumerate() {
            let sizes = [("id", id.len(), 1, Record::MAX_ID), ("body", body.len(), 0, Record::MAX_BODY)];
            for (field, bytes, least, most) in sizes {
                if !(least..=most).contains(&bytes) {
                    return Err(SpoolError::BadRecord { record: index, field, bytes, least, most });
                }
            }
        }
        let config = &self.config;
        let needed = pending + records.iter().map(frame_len).sum::<u64>() + FILE_HEADER as u64;
        let used = self.used();
        if used + needed > config.max_bytes.0 {
            return Err(SpoolError::Full {
                used: Size(used),
                set_aside: Size(self.status.set_aside_bytes),
                needed: Size(needed),
                limit: config.max_bytes,
            });
        }
        let age = self.age(now);
        if age > config.max_age {
            return Err(SpoolError::TooOld { age, limit: config.max_age });
        }
        match free {
            Ok(free) if *free < config.min_free.0.saturating_add(needed) => {
                Err(SpoolError::LowDisk { free: Size(*free), needed: Size(needed), limit: config.min_free })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(SpoolError::Io {
                operation: "cannot read the free space of the disk",
                reason: error.to_string(),
            }),
        }
    }

    /// Makes records durable. `next` is the position after them.
    fn commit(&mut self, bytes: &[u8], next: u64, first_time: Option<u64>) -> Result<(), SpoolError> {
        let most = self.config.segment_bytes.0;
        let fits = self.segments.back().is_some_and(|segment| segment.len + bytes.len() as u64 <= most);
        let active = self.active.take().filter(|_| fits);
        let file = match active {
            Some(file) => {
                let len = self.segments.back().map_or(0, |segment| segment.len);
                if let Err(error) = append_to(&*file, bytes, len) {
                    // The written bytes do not count. The file is closed: after a failed fsync the system may have
                    // dropped the bytes, and a later fsync would succeed without them.
                    let _ = file.truncate(len);
                    self.leftover = Some(Leftover::Tail(file, len));
                    return Err(error);
                }
                // Its earlier records are counted when they are to be read.
                if file.is_deleted() { self.create(bytes, first_time)? } else { file }
            }
            None => self.create(bytes, first_time)?,
        };
        if let Some(segment) = self.segments.back_mut() {
            segment.len += bytes.len() as u64;
            segment.end = next;
        }
        self.active = Some(file);
        self.status.end = next;
        self.cursor.note(self.position());
        Ok(())
    }

    /// Creates a segment with these records, and adds it with the size of its header.
    fn create(&mut self, records: &[u8], first_time: Option<u64>) -> Result<Box<dyn File>, SpoolError> {
        self.remove_leftover().map_err(SpoolError::io("cannot remove what a failed append left"))?;
        let first = self.status.end;
        let last = self.segments.back();
        let after_gap = last.is_some_and(|segment| segment.end_is_bound)
            || last.map_or(self.status.acknowledged, |segment| segment.end) < first;
        let name = SegmentName { first, generation: self.generation, after_gap }.file();
        self.generation = self.generation.wrapping_add(1);
        let file = self.create_file(&name, &[&file_header(first), records].concat());
        let file = file.inspect_err(|_| self.leftover = Some(Leftover::Segment(name.clone())))?;
        let len = FILE_HEADER as u64;
        let (end_is_bound, is_corrupt, read_failures) = (false, false, 0);
        self.segments.push_back(Segment {
            name,
            first,
            end: first,
            end_is_bound,
            len,
            first_time,
            is_corrupt,
            read_failures,
        });
        Ok(file)
    }

    /// Removes what a failed append left, so that it is gone before a segment begins at its position.
    fn remove_leftover(&mut self) -> io::Result<()> {
        match &self.leftover {
            None => return Ok(()),
            Some(Leftover::Tail(file, len)) => file.truncate(*len).and_then(|()| file.sync())?,
            // The directory is synced with the segment that is created next.
            Some(Leftover::Segment(name)) => match self.storage.remove(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        self.leftover = None;
        Ok(())
    }

    /// Creates a file with this content and makes it durable. After a failure it is removed: callers try again, and on a
    /// full disk the parts of all attempts would take its room.
    fn create_file(&self, name: &str, content: &[u8]) -> Result<Box<dyn File>, SpoolError> {
        let file = self.storage.create(name).map_err(SpoolError::io("cannot create a segment"))?;
        let written = append_to(&*file, content, 0)
            .and_then(|()| self.storage.sync().map_err(SpoolError::io("cannot sync the directory")));
        if let Err(error) = written {
            let _ = file.truncate(0);
            let _ = self.storage.remove(name);
            return Err(error);
        }
        Ok(file)
    }

    /// Stores records in a segment that is set aside: it is kept and never read. No bound refuses it, because the
    /// records are in the spool already, and would stop those behind them. If it fails, the records may not be
    /// stored.
    pub(crate) fn set_aside(&mut self, records: &[Record]) -> Result<(), SpoolError> {
        let first = self.status.acknowledged;
        let name = SegmentName { first, generation: self.generation, after_gap: false }.file() + SET_ASIDE;
        self.generation = self.generation.wrapping_add(1);
        let mut bytes = file_header(first);
        for (position, record) in (first..).zip(records) {
            write(&mut bytes, position, record);
        }
        self.create_file(&name, &bytes)?;
        self.status.set_aside += 1;
        self.status.set_aside_bytes += bytes.len() as u64;
        self.status.unpublishable += records.len() as u64;
        Ok(())
    }
}

fn append_to(file: &dyn File, bytes: &[u8], offset: u64) -> Result<(), SpoolError> {
    write_all(file, bytes, offset).map_err(SpoolError::io("cannot write to a segment"))?;
    file.sync().map_err(SpoolError::io("cannot sync a segment"))
}
