//! The acknowledged position on disk: the file `cursor`.
//!
//! It has two slots of 512 bytes, a sector each. A slot has magic (8), position (8), the first position of the newest
//! segment (8, all bits set if there is none), the position after its last record (8), and the CRC-32 of these (4),
//! little-endian. The valid slot with the greater position counts, and the other one is overwritten next, so that a torn
//! write leaves the earlier position. The file is written once at its full size, so that a full disk does not prevent later
//! acknowledgements.
//!
//! The positions of the newest segment show whether its file was removed or is shorter than it was. Otherwise a directory
//! whose segments were removed would look like an empty spool, and a segment that was cut like one with a torn tail.

use std::io;

use crate::{
    record::Position,
    segment::SegmentName,
    storage::{File, Storage, read_range, write_all},
};

pub(crate) const NAME: &str = "cursor";
/// With three numbers. Slots of earlier versions have fewer.
const MAGIC: [u8; 8] = *b"\xffGARCU3\n";
const WITHOUT_END: [u8; 8] = *b"\xffGARCU2\n";
const WITHOUT_NEWEST: [u8; 8] = *b"\xffGARCUR\n";
const SLOT: usize = 512;
const SLOT_CONTENT: usize = 36;

/// What a slot says. Of two slots with one position, the one with a newest segment was written later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    /// The records before it are acknowledged.
    pub(crate) position: Position,
    /// The newest segment; `None` if there is none with records that are not acknowledged.
    pub(crate) newest: Option<Newest>,
}

/// What is known of the newest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Newest {
    /// The position of its first record.
    pub(crate) first: Position,
    /// The records before this position were made durable. There may be more.
    pub(crate) end: Position,
}

/// The open file; `None` until it could be created.
pub(crate) struct Cursor {
    file: Option<Box<dyn File>>,
    /// The slot that the next position is written to.
    free_slot: usize,
}

impl Cursor {
    /// Opens the file or creates it, and returns what it says; `None` if no slot is valid. A new spool, which `is_new` says,
    /// has position 0. If it cannot be created, storing a position tries again.
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

    /// Makes a position durable. If it fails, the earlier position may count after a restart.
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

    /// Records in the free slot what the newest segment has, after it was synced, and without another fsync, which would cost
    /// as much. If a power failure undoes the write, it is not noticed that these records are gone. The slot remains the free
    /// one, so that the next position does not overwrite the durable slot.
    pub(crate) fn note(&self, stored: Stored) {
        if let Some(file) = &self.file {
            let written = write_all(&**file, &slot_of(stored), (self.free_slot * SLOT) as u64);
            let _ = written.inspect_err(|error| tracing::warn!(%error, "cannot write the spool's cursor"));
        }
    }
}

/// The number of records that are missing with their segments and were not acknowledged. `first` and `last` are the
/// segments that exist.
pub(crate) fn missing(
    first: Option<&SegmentName>,
    last: Option<&SegmentName>,
    stored: Option<Stored>,
) -> u64 {
    let Some(Stored { position, newest }) = stored else { return 0 };
    let before = first.filter(|first| !first.after_gap).and_then(|first| first.first.checked_sub(position));
    let missing = newest.filter(|newest| last.is_none_or(|last| last.first < newest.first));
    let of_newest = missing.map(|newest| newest.end.saturating_sub(newest.first.max(position)));
    before.unwrap_or(0) + of_newest.unwrap_or(0)
}

/// The position after the last durable record of a segment, as the next segment or the cursor shows it. `None` if neither
/// does.
pub(crate) fn shown_end(
    first: Position,
    next: Option<SegmentName>,
    stored: Option<Stored>,
) -> Option<Position> {
    match next {
        // After a gap, the positions before it were never used.
        Some(next) => (!next.after_gap).then_some(next.first),
        None => stored?.newest.filter(|newest| newest.first == first).map(|newest| newest.end),
    }
}

/// Whether a segment whose records end at `end` reaches neither the next segment nor the acknowledged position.
pub(crate) fn is_detached(end: Position, next: Option<SegmentName>, acknowledged: Position) -> bool {
    // What is before a gap was reported when it was found.
    !next.is_some_and(|next| next.after_gap)
        && end < next.map_or(acknowledged, |next| next.first.min(acknowledged))
}

fn slot_of(Stored { position, newest }: Stored) -> Vec<u8> {
    let mut slot = MAGIC.to_vec();
    slot.extend(position.to_le_bytes());
    let Newest { first, end } = newest.unwrap_or(Newest { first: Position::MAX, end: Position::MAX });
    slot.extend(first.to_le_bytes());
    slot.extend(end.to_le_bytes());
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
    // A segment is recorded with its first record.
    let of = |first: Position, end| (first != Position::MAX).then_some(Newest { first, end });
    if let Some([position, first, end]) = numbers(slot, MAGIC) {
        return Some(Stored { position, newest: of(first, end) });
    }
    if let Some([position, first]) = numbers(slot, WITHOUT_END) {
        return Some(Stored { position, newest: of(first, first.saturating_add(1)) });
    }
    let [position] = numbers(slot, WITHOUT_NEWEST)?;
    Some(Stored { position, newest: None })
}

/// The numbers of a valid slot with this magic.
fn numbers<const N: usize>(slot: &[u8], magic: [u8; 8]) -> Option<[u64; N]> {
    let (content, crc) = slot.get(..8 * N + 12)?.split_at(8 * N + 8);
    let is_valid = content.starts_with(&magic) && crc32fast::hash(content).to_le_bytes() == crc;
    let number = |index: usize| {
        content[8 * index + 8..][..8].iter().rev().fold(0, |it, &byte| it << 8 | u64::from(byte))
    };
    is_valid.then(|| std::array::from_fn(number))
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
