//! The bytes of a segment: a file header, then records.
//!
//! All numbers are little-endian. The file header has [`FILE_HEADER`] bytes: magic (8), format version (4), position of
//! the first record (8), CRC-32 of these (4). A record has a header of [`RECORD_HEADER`] bytes: magic (4), size of id and
//! body (4), position (8), milliseconds since the epoch (8), size of the id (2), CRC-32 of id and body (4), CRC-32 of the
//! header (4). Id and body follow.
//!
//! The header's own CRC makes the size trustworthy, so that a record with a corrupt body can be skipped. After a corrupt
//! header the next record is found by its magic, which contains bytes that never occur in UTF-8.

use crate::record::{Position, Record, milliseconds, time};

/// The version of the format.
pub const FORMAT_VERSION: u32 = 1;
/// Size of the file header, in bytes.
pub(crate) const FILE_HEADER: usize = 24;
/// Size of a record's header, in bytes.
pub(crate) const RECORD_HEADER: usize = 34;

const FILE_MAGIC: [u8; 8] = *b"\xffGARSPL\n";
const RECORD_MAGIC: [u8; 4] = *b"\xffR\xfeS";

/// The header of a segment whose first record has this position.
pub(crate) fn file_header(first: Position) -> Vec<u8> {
    let mut header = FILE_MAGIC.to_vec();
    header.extend(FORMAT_VERSION.to_le_bytes());
    header.extend(first.to_le_bytes());
    header.extend(crc32fast::hash(&header).to_le_bytes());
    header
}

/// Whether a file without records is a segment with this first position whose first record was not written to its end.
pub(crate) fn is_unfinished(bytes: &[u8], first: Position) -> bool {
    let header = file_header(first);
    header.starts_with(bytes) || bytes.starts_with(&header) || bytes.iter().all(|byte| *byte == 0)
}

/// The size of a record in a segment.
pub(crate) fn frame_len(record: &Record) -> u64 {
    (RECORD_HEADER + record.id.len() + record.body.len()) as u64
}

/// Appends a record, whose sizes were checked.
pub(crate) fn write(bytes: &mut Vec<u8>, position: Position, record: &Record) {
    let start = bytes.len();
    let mut content = crc32fast::Hasher::new();
    content.update(record.id.as_bytes());
    content.update(&record.body);
    bytes.extend(RECORD_MAGIC);
    bytes.extend(((record.id.len() + record.body.len()) as u32).to_le_bytes());
    bytes.extend(position.to_le_bytes());
    bytes.extend(milliseconds(record.time).to_le_bytes());
    bytes.extend((record.id.len() as u16).to_le_bytes());
    bytes.extend(content.finalize().to_le_bytes());
    bytes.extend(crc32fast::hash(&bytes[start..]).to_le_bytes());
    bytes.extend(record.id.as_bytes());
    bytes.extend(&record.body);
}

/// An intact record in the bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) position: Position,
    pub(crate) milliseconds: u64,
    /// Offset of the header.
    pub(crate) offset: usize,
    id_len: usize,
    len: usize,
}

impl Entry {
    /// The record at this place of the segment's bytes. An id that is not UTF-8 is converted.
    pub(crate) fn record(&self, bytes: &[u8]) -> Record {
        let content = &bytes[self.offset + RECORD_HEADER..self.end()];
        let (id, body) = content.split_at(self.id_len);
        let id = String::from_utf8_lossy(id).into_owned();
        Record { id, time: time(self.milliseconds), body: body.to_vec() }
    }

    /// Offset after the record.
    pub(crate) fn end(&self) -> usize {
        self.offset + RECORD_HEADER + self.len
    }

    /// Size of id and body.
    pub(crate) fn content_len(&self) -> usize {
        self.len
    }
}

/// The contents of a segment. Built from its bytes, from front to back, in one or several steps.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The intact records. Positions ascend.
    pub(crate) entries: Vec<Entry>,
    /// Offsets of unreadable bytes.
    pub(crate) damaged: Vec<usize>,
    /// The position after the last record, readable or not.
    pub(crate) next: Position,
    /// Offset up to which the bytes are whole records or damaged. The rest is a torn tail: an append that did not end.
    pub(crate) end: usize,
    /// No record follows the last damaged bytes, so that they do not tell how many records they were.
    pub(crate) tail_is_damaged: bool,
    /// Records from this position on were refused: a later segment begins there.
    limit: Position,
    /// Intact records from the limit on. An append that fails is cut at once, so that there are hardly ever any: the
    /// later segment may be a foreign file.
    pub(crate) beyond: u64,
}

/// A valid record header at an offset.
struct Header {
    entry: Entry,
    content_crc: u32,
}

impl Scan {
    /// Reads the file header. Records have positions from `first` to before `limit`. The error is the version of a
    /// valid header, if it is not [`FORMAT_VERSION`].
    pub(crate) fn start(bytes: &[u8], first: Position, limit: Position) -> Result<Self, u32> {
        let mut scan = Self {
            entries: Vec::new(),
            damaged: Vec::new(),
            next: first,
            end: 0,
            tail_is_damaged: false,
            limit,
            beyond: 0,
        };
        if bytes.len() < FILE_HEADER {
            return Ok(scan);
        }
        let header = &bytes[..FILE_HEADER];
        let valid = header.starts_with(&FILE_MAGIC) && number(&header[20..]) == crc_of(&header[..20]);
        let version = number(&header[8..12]) as u32;
        if valid && version != FORMAT_VERSION {
            return Err(version);
        }
        if valid && number(&header[12..20]) == first {
            scan.end = FILE_HEADER;
        } else {
            scan.resume_after_damage(bytes, FILE_HEADER);
        }
        scan.extend(bytes);
        Ok(scan)
    }

    /// Continues with the bytes that were added since.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        while self.end < bytes.len() {
            let offset = self.end;
            match self.header(bytes, offset) {
                Some(Header { entry, .. }) if entry.position >= self.limit => {
                    self.count_beyond(bytes);
                    return;
                }
                // A torn record: the file ends in it.
                Some(Header { entry, .. }) if entry.end() > bytes.len() => return,
                Some(Header { entry, content_crc }) => {
                    // A gap means that records before this one are missing.
                    let content = &bytes[offset + RECORD_HEADER..entry.end()];
                    let intact = crc32fast::hash(content) == content_crc;
                    if !intact || entry.position > self.next {
                        self.damaged.push(offset);
                    }
                    if intact {
                        self.entries.push(entry);
                    }
                    (self.next, self.end) = (entry.position + 1, entry.end());
                }
                None => {
                    if !self.resume_after_damage(bytes, offset + 1) {
                        return;
                    }
                }
            }
        }
    }

    /// Counts the intact records from the limit on.
    fn count_beyond(&mut self, bytes: &[u8]) {
        let mut offset = self.end;
        self.beyond = 0;
        while let Some(Header { entry, content_crc }) = self.header(bytes, offset)
            && let Some(content) = bytes.get(offset + RECORD_HEADER..entry.end())
        {
            self.beyond += u64::from(crc32fast::hash(content) == content_crc);
            offset = entry.end();
        }
    }

    /// The number of records that are unreadable, if the segment has positions from `first` to before `end`. A damaged
    /// tail counts as one record, because at least one was there.
    pub(crate) fn missing(&self, first: Position, end: Position) -> u64 {
        let missing = (end - first).saturating_sub(self.entries.len() as u64);
        missing + u64::from(self.tail_is_damaged && self.next >= end)
    }

    /// Looks for the next record from `from` on; the bytes before it are damaged. Returns whether the scan can go on.
    fn resume_after_damage(&mut self, bytes: &[u8], from: usize) -> bool {
        let found = (from..bytes.len().saturating_sub(RECORD_HEADER - 1))
            .find(|&offset| bytes[offset] == RECORD_MAGIC[0] && self.header(bytes, offset).is_some());
        let rest = &bytes[self.end..];
        match found {
            Some(offset) => {
                self.damaged.push(self.end);
                self.end = offset;
                true
            }
            // The end of the file was not written: too short for a record, or blocks that were never filled.
            None if rest.len() < RECORD_HEADER || rest.iter().all(|&byte| byte == 0) => false,
            None => {
                self.damaged.push(self.end);
                self.end = bytes.len();
                self.tail_is_damaged = true;
                true
            }
        }
    }

    /// The header at this offset, if it is valid.
    fn header(&self, bytes: &[u8], offset: usize) -> Option<Header> {
        let header = bytes.get(offset..offset + RECORD_HEADER)?;
        if !header.starts_with(&RECORD_MAGIC) || number(&header[30..]) != crc_of(&header[..30]) {
            return None;
        }
        let entry = Entry {
            position: number(&header[8..16]),
            milliseconds: number(&header[16..24]),
            offset,
            id_len: number(&header[24..26]) as usize,
            len: number(&header[4..8]) as usize,
        };
        let plausible = entry.position >= self.next && entry.position < u64::MAX && entry.id_len <= entry.len;
        plausible.then_some(Header { entry, content_crc: number(&header[26..30]) as u32 })
    }
}

fn crc_of(bytes: &[u8]) -> u64 {
    crc32fast::hash(bytes).into()
}

/// A little-endian number of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
