//! The acknowledged position on disk: the file `cursor`.
//!
//! It has two slots of 512 bytes, a sector each. A slot has magic (8), position (8), the first position of the newest
//! segment (8, all bits set if there is none), and the CRC-32 of these (4), little-endian. The valid slot with the greater
//! position counts, and the other one is overwritten next, so that a torn write leaves the earlier position. The file is
//! written once at its full size, so that a full disk does not prevent later acknowledgements.
//!
//! The position of the newest segment shows whether its file was removed. Otherwise a directory whose segments were removed
//! would look like an empty spool.

use std::io;

use crate::{
    record::Position,
    segment::SegmentName,
    storage::{File, Storage, read_range, write_all},
};

pub(crate) const NAME: &str = "cursor";
const MAGIC: [u8; 8] = *b"\xffGARCU2\n";
/// Of slots without the newest segment, from earlier versions.
const FIRST_MAGIC: [u8; 8] = *b"\xffGARCUR\n";
const SLOT: usize = 512;
const SLOT_CONTENT: usize = 28;
const FIRST_SLOT_CONTENT: usize = 20;

/// What a slot says. Of two slots with one position, the one with a newest segment was written later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    /// The records before it are acknowledged.
    pub(crate) position: Position,
    /// The first position of the newest segment; `None` if there is none with records that are not acknowledged.
    pub(crate) newest: Option<Position>,
}

/// The open file; `None` until it could be created.
pub(crate) struct Cursor {
    file: Option<Box<dyn File>>,
    /// The slot that the next position is written to.
    free_slot: usize,
}

impl Cursor {
    /// Opens the file or creates it, and returns what it says; `None` if no slot is valid. A new spool, which `is_new` says,
    /// has position 0.
    ///
    /// # Errors
    /// The file exists and cannot be read. If it cannot be created, storing a position tries again.
    pub(crate) fn open(
        storage: &dyn Storage,
        exists: bool,
        is_new: bool,
    ) -> io::Result<(Self, Option<Stored>)> {
        if !exists {
            let begin = is_new.then(Stored::default);
            let file = create(storage, begin).inspect_err(|error| {
                tracing::warn!(%error, "cannot create the spool's cursor; records may come again after a restart");
            });
            return Ok((Self { file: file.ok(), free_slot: 0 }, begin));
        }
        let file = storage.open(NAME)?;
        let stored = stored(&*file)?;
        let free_slot = stored.map_or(0, |(_, slot)| 1 - slot);
        Ok((Self { file: Some(file), free_slot }, stored.map(|(stored, _)| stored)))
    }

    /// Makes a position durable.
    ///
    /// # Errors
    /// After a restart the earlier position may count.
    pub(crate) fn store(&mut self, storage: &dyn Storage, stored: Stored) -> io::Result<()> {
        if self.file.is_none() {
            // A file that was created but not made durable before.
            let _ = storage.remove(NAME);
            self.file = Some(create(storage, None)?);
        }
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        write_all(&**file, &slot_of(stored), (self.free_slot * SLOT) as u64)?;
        file.sync()?;
        self.free_slot = 1 - self.free_slot;
        Ok(())
    }

    /// Records a new segment in the free slot, without an fsync, which would cost as much as that of the segment. If a power
    /// failure undoes the write, the removal of that segment is not noticed. The slot remains the free one, so that the next
    /// position does not overwrite the durable slot.
    pub(crate) fn note_segment(&self, stored: Stored) {
        if let Some(file) = &self.file {
            let written = write_all(&**file, &slot_of(stored), (self.free_slot * SLOT) as u64);
            let _ = written.inspect_err(|error| tracing::warn!(%error, "cannot write the spool's cursor"));
        }
    }
}

/// The number of records that are missing with their segments and were not acknowledged. `first` and `last` are the
/// segments that exist. Of a newest segment that is missing, the number is unknown, and it counts as one record.
pub(crate) fn missing(
    first: Option<&SegmentName>,
    last: Option<&SegmentName>,
    stored: Option<Stored>,
) -> u64 {
    let Some(Stored { position, newest }) = stored else { return 0 };
    let before = first.filter(|first| !first.after_gap).and_then(|first| first.first.checked_sub(position));
    let has_newest = newest.is_none_or(|newest| last.is_some_and(|last| last.first >= newest));
    before.unwrap_or(0) + u64::from(!has_newest)
}

fn slot_of(Stored { position, newest }: Stored) -> Vec<u8> {
    let mut slot = MAGIC.to_vec();
    slot.extend(position.to_le_bytes());
    slot.extend(newest.unwrap_or(Position::MAX).to_le_bytes());
    slot.extend(crc32fast::hash(&slot).to_le_bytes());
    slot
}

/// What the file says, and the slot. `None` if no slot is valid.
pub(crate) fn stored(file: &dyn File) -> io::Result<Option<(Stored, usize)>> {
    let mut bytes = Vec::new();
    read_range(file, 0, 2 * SLOT as u64, &mut bytes)?;
    let slots = (0..2).filter_map(|slot| Some((stored_in(bytes.get(slot * SLOT..)?)?, slot)));
    Ok(slots.max())
}

fn stored_in(slot: &[u8]) -> Option<Stored> {
    let numbers = |magic: [u8; 8], len: usize| {
        let (content, crc) = slot.get(..len)?.split_at(len - 4);
        let is_valid = content.starts_with(&magic) && crc32fast::hash(content).to_le_bytes() == crc;
        is_valid.then(|| &content[8..])
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    if let Some(content) = numbers(MAGIC, SLOT_CONTENT) {
        let (position, newest) = content.split_at(8);
        let newest = Some(number(newest)).filter(|newest| *newest != Position::MAX);
        return Some(Stored { position: number(position), newest });
    }
    let position = number(numbers(FIRST_MAGIC, FIRST_SLOT_CONTENT)?);
    Some(Stored { position, newest: None })
}

/// Creates the file, with this in its second slot.
fn create(storage: &dyn Storage, stored: Option<Stored>) -> io::Result<Box<dyn File>> {
    let mut content = vec![0; 2 * SLOT];
    if let Some(stored) = stored {
        content[SLOT..SLOT + SLOT_CONTENT].copy_from_slice(&slot_of(stored));
    }
    let file = storage.create(NAME)?;
    write_all(&*file, &content, 0)?;
    file.sync()?;
    storage.sync()?;
    Ok(file)
}
