//! Opens a spool: cuts torn tails and finds corrupt segments.

use std::{collections::VecDeque, path::Path};

use super::{Log, read::MAX_READ_FAILURES, sizes_of_set_aside};
use crate::{
    config::SpoolConfig,
    cursor::{self, Cursor, Stored},
    error::OpenError,
    frame::{FILE_HEADER, RECORD_HEADER, Scan},
    record::Position,
    segment::{SET_ASIDE, Segment, SegmentName, sorted},
    status::SpoolStatus,
    storage::{Storage, read_range, write_all},
    without_records::{WithoutRecord, without_records},
};

impl Log {
    /// Opens the spool in a directory, which `directory` names in errors.
    pub(crate) fn open(
        storage: Box<dyn Storage>,
        directory: &Path,
        config: SpoolConfig,
    ) -> Result<Self, OpenError> {
        let failed =
            |operation| move |error| OpenError::Io { directory: directory.to_owned(), operation, error };
        let names = storage.list().map_err(failed("list the directory"))?;
        let mut segments = sorted(&names);
        let exists = names.iter().any(|name| name == cursor::NAME);
        let cursor = Cursor::open(&*storage, exists, segments.is_empty());
        let (cursor, position) = cursor.map_err(failed("read the cursor"))?;
        let acknowledged = position.unwrap_or_default().position;
        if let (None, Some((first, _))) = (position, segments.first()) {
            tracing::warn!(
                directory = %directory.display(),
                first = first.first,
                "the spool has no readable cursor: what it holds may be sent again, and it is not known whether records \
                 before the first position are missing"
            );
        }
        let generation =
            names.iter().filter_map(|name| SegmentName::parse(name)).map(|it| it.generation).max();
        let counted = sizes_of_set_aside(&*storage, &names);
        let (set_aside, set_aside_bytes) = counted.map_err(failed("read the segments that are set aside"))?;
        let mut log = Self {
            storage,
            config,
            segments: VecDeque::new(),
            active: None,
            leftover: None,
            generation: generation.map_or(0, |generation| generation.wrapping_add(1)),
            cursor,
            loaded: None,
            status: SpoolStatus {
                acknowledged,
                end: acknowledged,
                set_aside,
                set_aside_bytes,
                max_bytes: config.max_bytes.0,
                ..SpoolStatus::default()
            },
            oldest: None,
        };
        let left_out = without_records(&*log.storage, &mut segments);
        let newest = position.and_then(|it| it.newest);
        let gone = newest.filter(|newest| segments.last().is_none_or(|(last, _)| last.first < newest.first));
        for file in left_out {
            // What was cut to nothing is kept, and its records count as missing.
            log.leave_out(&file, gone.is_some_and(|gone| gone.first == file.first));
        }
        let [first, last] = [segments.first(), segments.last()].map(|it| it.map(|(name, _)| name));
        match cursor::missing(first, last, position) {
            0 => {}
            missing => log.status.found_missing(missing),
        }
        // The segments up to the last one that is detached.
        let mut detached = 0;
        for (index, (parsed, name)) in segments.iter().enumerate() {
            let next = segments.get(index + 1).map(|(next, _)| *next);
            let is_detached = log.recover(name, parsed.first, next, position);
            let is_detached = is_detached.map_err(|unusable| match unusable {
                Unusable::Version(found) => OpenError::Version { segment: (*name).clone(), found },
                Unusable::Io(error) => failed("read the size of a segment")(error),
            })?;
            if is_detached {
                detached = log.segments.len();
            }
        }
        let Self { segments, status, .. } = &mut log;
        segments.iter_mut().take(detached).for_each(|segment| status.found_detached(segment));
        // No position is used twice, also if its record is gone.
        log.status.end = log.status.end.max(newest.map_or(0, |newest| newest.end));
        log.retire();
        Ok(log)
    }

    /// Removes what an append that did not end has left, and sets another file without records aside.
    fn leave_out(&mut self, file: &WithoutRecord, had_records: bool) {
        let WithoutRecord { name, is_unfinished, bytes, .. } = file;
        let done = if *is_unfinished && !had_records {
            self.storage.remove(name)
        } else {
            tracing::error!(
                segment = name,
                "a file with the name of a spool segment has no record, and is set aside"
            );
            let renamed = self.storage.rename(name, &format!("{name}{SET_ASIDE}"));
            if renamed.is_ok() {
                self.status.corrupt += u64::from(!is_unfinished);
                self.status.set_aside += 1;
                self.status.set_aside_bytes += bytes;
            }
            renamed
        };
        if let Err(error) = done {
            tracing::warn!(segment = name, %error, "cannot remove a file from the spool");
        }
    }

    /// Adds a segment of an earlier process. `next` is the segment after it. Returns whether its records end before the
    /// cursor and before the next segment, as only those of a foreign file do: drained segments are removed from the
    /// front.
    fn recover(
        &mut self,
        name: &str,
        first: Position,
        next: Option<SegmentName>,
        stored: Option<Stored>,
    ) -> Result<bool, Unusable> {
        let acknowledged = self.status.acknowledged;
        let file = self.storage.open(name).map_err(Unusable::Io)?;
        let len = file.len().map_err(Unusable::Io)?;
        let mut bytes = Vec::new();
        let mut segment = Segment {
            name: name.to_owned(),
            first,
            end: first,
            end_is_bound: false,
            len,
            first_time: None,
            is_corrupt: false,
            read_failures: 0,
        };
        let mut read = || read_range(&*file, 0, len, &mut bytes);
        if let Err(error) = (1..MAX_READ_FAILURES).fold(read(), |outcome, _| outcome.or_else(|_| read())) {
            // Tried again when its records are due. New records get positions after any that it could have.
            tracing::error!(segment = name, %error, "cannot read a spool segment, trying again when it is drained");
            segment.read_failures = 1;
            segment.end = next.map_or(first + len / RECORD_HEADER as u64 + 1, |next| next.first);
            segment.end_is_bound = next.is_none_or(|next| next.after_gap);
            self.status.end = self.status.end.max(segment.end);
            self.segments.push_back(segment);
            return Ok(false);
        }
        let limit = next.map_or(Position::MAX, |next| next.first);
        let scan = Scan::start(&bytes, first, limit).map_err(Unusable::Version)?;
        let shown = cursor::shown_end(first, next, stored);
        segment.end = match next {
            Some(_) => shown.unwrap_or(scan.next),
            // It may have more than the cursor shows.
            None => scan.next.max(shown.unwrap_or(0)),
        };
        let is_short = segment.end > scan.next.max(acknowledged);
        let has_content = !scan.entries.is_empty();
        if !scan.damaged.is_empty() || is_short {
            self.status.found_corrupt(&mut segment, &scan);
        }
        if scan.beyond > 0 {
            // They may have been accepted, if the next segment is a foreign file. Nothing is cut: the file is kept.
            self.status.found_overlapped(&mut segment, &scan);
        }
        let is_detached = has_content && cursor::is_detached(scan.next, next, acknowledged);
        if is_detached {
            segment.end = scan.next;
        }
        if !segment.is_corrupt && !is_detached {
            if !has_content {
                // An append to it never ended, or none of it counts.
                if let Err(error) = self.storage.remove(name) {
                    tracing::warn!(segment = name, %error, "cannot remove an empty spool segment");
                }
                return Ok(false);
            }
            if bytes.len() > scan.end {
                tracing::info!(
                    segment = name,
                    offset = scan.end,
                    bytes = bytes.len() - scan.end,
                    "torn tail cut"
                );
                let _ = file.truncate(scan.end as u64);
            }
            // The last records may not be durable: the process was killed before its fsync, or the fsync failed. They
            // count from now on. After a failed fsync the system holds their bytes for clean, so that another fsync
            // alone would not write them.
            if next.is_none()
                && let Err(error) = write_all(&*file, &bytes[..scan.end], 0).and_then(|()| file.sync())
            {
                tracing::warn!(segment = name, %error, "cannot sync a spool segment");
            }
        }
        segment.len = scan.end.max(FILE_HEADER) as u64;
        let waiting = scan.entries.iter().find(|entry| entry.position >= acknowledged);
        segment.first_time = scan.entries.first().map(|entry| entry.milliseconds);
        self.oldest = self.oldest.or(waiting.map(|entry| entry.milliseconds));
        self.status.end = self.status.end.max(segment.end);
        self.segments.push_back(segment);
        Ok(is_detached)
    }
}

/// Why the spool cannot be opened with a segment.
enum Unusable {
    Version(u32),
    Io(std::io::Error),
}
