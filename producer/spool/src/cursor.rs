//! The acknowledged position on disk: the file `cursor`.
//!
//! It has two slots of 512 bytes, a sector each. A slot has magic (8), position (8) and the CRC-32 of these (4),
//! little-endian. The valid slot with the greater position counts, and the other one is overwritten next, so that a torn
//! write leaves the earlier position. The file is written once at its full size, so that a full disk does not prevent
//! later acknowledgements.

use std::io;

use crate::{
    record::Position,
    segment::SegmentName,
    storage::{File, Storage, read_range, write_all},
};

pub(crate) const NAME: &str = "cursor";
const MAGIC: [u8; 8] = *b"\xffGARCUR\n";
const SLOT: usize = 512;
const SLOT_CONTENT: usize = 20;

/// The open file; `None` until it could be created.
pub(crate) struct Cursor {
    file: Option<Box<dyn File>>,
    /// The slot that the next position is written to.
    free_slot: usize,
}

impl Cursor {
    /// Opens the file or creates it, and returns the acknowledged position; `None` if no slot is valid. A new spool, which
    /// `is_new` says, has position 0.
    ///
    /// # Errors
    /// The file exists and cannot be read. If it cannot be created, storing a position tries again.
    pub(crate) fn open(
        storage: &dyn Storage,
        exists: bool,
        is_new: bool,
    ) -> io::Result<(Self, Option<Position>)> {
        if !exists {
            let file = create(storage, is_new.then_some(0)).inspect_err(|error| {
                tracing::warn!(%error, "cannot create the spool's cursor; records may come again after a restart");
            });
            return Ok((Self { file: file.ok(), free_slot: 0 }, is_new.then_some(0)));
        }
        let file = storage.open(NAME)?;
        let stored = stored(&*file)?;
        let free_slot = stored.map_or(0, |(_, slot)| 1 - slot);
        Ok((Self { file: Some(file), free_slot }, stored.map(|(position, _)| position)))
    }

    /// Makes a position durable.
    ///
    /// # Errors
    /// After a restart the earlier position may count.
    pub(crate) fn store(&mut self, storage: &dyn Storage, position: Position) -> io::Result<()> {
        if self.file.is_none() {
            // A file that was created but not made durable before.
            let _ = storage.remove(NAME);
            self.file = Some(create(storage, None)?);
        }
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        write_all(&**file, &slot_of(position), (self.free_slot * SLOT) as u64)?;
        file.sync()?;
        self.free_slot = 1 - self.free_slot;
        Ok(())
    }
}

/// The number of records before the first segment that were not acknowledged. `None` if there are none, or if the
/// position is unknown.
pub(crate) fn missing_before(first: &SegmentName, position: Option<Position>) -> Option<u64> {
    let missing = first.first.checked_sub(position?)?;
    (missing > 0 && !first.after_gap).then_some(missing)
}

fn slot_of(position: Position) -> Vec<u8> {
    let mut slot = MAGIC.to_vec();
    slot.extend(position.to_le_bytes());
    slot.extend(crc32fast::hash(&slot).to_le_bytes());
    slot
}

/// The position in the file, and its slot. `None` if no slot is valid.
pub(crate) fn stored(file: &dyn File) -> io::Result<Option<(Position, usize)>> {
    let mut bytes = Vec::new();
    read_range(file, 0, 2 * SLOT as u64, &mut bytes)?;
    let slots = (0..2).filter_map(|slot| Some((position_in(bytes.get(slot * SLOT..)?)?, slot)));
    Ok(slots.max())
}

fn position_in(slot: &[u8]) -> Option<Position> {
    let (content, crc) = slot.get(..SLOT_CONTENT)?.split_at(SLOT_CONTENT - 4);
    let valid = content.starts_with(&MAGIC) && crc32fast::hash(content).to_le_bytes() == crc;
    valid.then(|| content[8..].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// Creates the file, with a position in its second slot.
fn create(storage: &dyn Storage, position: Option<Position>) -> io::Result<Box<dyn File>> {
    let mut content = vec![0; 2 * SLOT];
    if let Some(position) = position {
        content[SLOT..SLOT + SLOT_CONTENT].copy_from_slice(&slot_of(position));
    }
    let file = storage.create(NAME)?;
    write_all(&*file, &content, 0)?;
    file.sync()?;
    storage.sync()?;
    Ok(file)
}
