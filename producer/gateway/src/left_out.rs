//! What is left out of a request of which something is stored.

use crate::refusal::Refusal;

/// Memory of a refusal, besides its text.
const REFUSAL: usize = size_of::<Refusal>() + 64;

/// The records of a request that are not stored, and the fields that are left out of others.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Whether the record at each position is stored. Empty if all are.
    pub(super) stored: Vec<bool>,
    /// Records that are refused. Each names its position.
    pub(super) refused: Vec<Refusal>,
    /// Fields that are left out of records which are stored.
    pub(super) notes: Vec<Refusal>,
}

impl LeftOut {
    /// The ids of stored records by position; `None` for a record that is not stored.
    pub(super) fn by_position<'a, I>(&self, ids: &'a [I]) -> impl Iterator<Item = Option<&'a I>> {
        let mut ids = ids.iter();
        let count = if self.stored.is_empty() { ids.len() } else { self.stored.len() };
        (0..count).map(move |position| match self.stored.get(position) {
            Some(false) => None,
            _ => ids.next(),
        })
    }

    /// Everything that is left out.
    pub(super) fn all(&self) -> impl Iterator<Item = &Refusal> {
        self.refused.iter().chain(&self.notes)
    }

    /// The different codes of what is left out.
    pub(super) fn codes(&self) -> Vec<&'static str> {
        let mut codes: Vec<_> = self.all().map(|refusal| refusal.code).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

/// What a parser tells besides the tasks of a body, and the memory that it needs until it is answered.
pub(super) trait Notes: Send + 'static {
    /// The memory that the notes occupy until the request is answered, in bytes.
    fn memory(&self) -> usize {
        0
    }
}

impl Notes for () {}

impl Notes for LeftOut {
    fn memory(&self) -> usize {
        // A text is held twice while the answer is written.
        let texts = self.all().map(|refusal| REFUSAL + 2 * refusal.message.len());
        self.stored.len() + texts.sum::<usize>()
    }
}
