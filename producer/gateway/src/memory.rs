//! One budget in bytes for everything that senders make the gateway hold: bodies being read, inflated data, parsed
//! records, tasks whose confirms are outstanding, and receipts that are not written yet.
//!
//! A [`Reservation`] travels with the memory it stands for and is released when it is dropped, so that both end at
//! the same place. What every connection holds anyway (its task, its first buffers) is bounded by the number of
//! connections and is not part of the budget.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_common::config::Size;

use crate::{limits::Limits, refusal::Refusal};

/// A reservation of at most this many bytes may use all of the budget: a few readings. Larger ones share three
/// quarters of it, so that large bodies, however many and slow, leave room for the readings of healthy sensors.
const SMALL: usize = 8 * 1024;

/// The gateway's budget. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: Size,
    used: AtomicUsize,
    retry_after: Duration,
}

impl MemoryBudget {
    /// The budget of these limits.
    pub fn new(limits: &Limits) -> Self {
        let (limit, retry_after) = (limits.memory_budget, limits.retry_after);
        Self(Arc::new(Shared { limit, used: AtomicUsize::new(0), retry_after }))
    }

    /// Bytes that are reserved now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// A reservation of nothing yet.
    pub(super) fn empty(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    /// Reserves so many bytes.
    ///
    /// # Errors
    /// As [`Reservation::grow`].
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reservation, Refusal> {
        let mut reservation = self.empty();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// What is answered while it is used up.
    pub(super) fn exhausted(&self) -> Refusal {
        let Shared { limit, retry_after, .. } = &*self.0;
        let why = format!("the memory for requests is in use (gateway.memory_budget {limit})");
        Refusal::Overloaded { why, retry_after: *retry_after }
    }

    /// What one reservation can ever hold.
    fn largest(&self) -> usize {
        largest(self.0.limit)
    }
}

/// What one request may hold of a budget.
pub(super) fn largest(budget: Size) -> usize {
    budget.bytes() / 4 * 3
}

/// A part of the budget; released when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl Reservation {
    /// Reserves more.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] while others hold too much, [`Refusal::TooLarge`] where it would be too much even
    /// without them. The reservation is unchanged.
    pub(super) fn grow(&mut self, more: usize) -> Result<(), Refusal> {
        let Shared { limit, used, .. } = &*self.budget.0;
        let wanted = self.bytes.saturating_add(more);
        if wanted > self.budget.largest() {
            let limit = Size(self.budget.largest() as u64);
            return Err(Refusal::TooLarge { what: "the request's memory (gateway.memory_budget)", limit });
        }
        let ceiling = if wanted <= SMALL { limit.bytes() } else { self.budget.largest() };
        let taken = used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|total| *total <= ceiling)
        });
        if taken.is_err() {
            return Err(self.budget.exhausted());
        }
        self.bytes = wanted;
        Ok(())
    }

    /// Sets it to what is held now, more or less than before.
    ///
    /// # Errors
    /// As [`Reservation::grow`].
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Refusal> {
        if bytes > self.bytes {
            return self.grow(bytes - self.bytes);
        }
        self.release(self.bytes - bytes);
        Ok(())
    }

    /// Sets it to at most so many bytes.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        self.release(self.bytes.saturating_sub(bytes));
    }

    fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.budget.0.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

/// Adds `data` to `bytes`, whose capacity is what is reserved for it. `most` bounds the length.
///
/// # Errors
/// [`Refusal::TooLarge`] naming `what`, or as [`Reservation::grow`].
pub(super) fn append(
    bytes: &mut Vec<u8>,
    data: &[u8],
    memory: &mut Reservation,
    what: &'static str,
    most: Size,
) -> Result<(), Refusal> {
    let needed = bytes.len() + data.len();
    if needed > most.bytes() {
        return Err(Refusal::TooLarge { what, limit: most });
    }
    if needed > bytes.capacity() {
        let capacity = needed.max(bytes.capacity() * 2).clamp(256, most.bytes().max(256));
        memory.grow(capacity - bytes.capacity())?;
        bytes.reserve_exact(capacity - bytes.len());
    }
    bytes.extend_from_slice(data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(bytes: u64) -> MemoryBudget {
        MemoryBudget::new(&Limits { memory_budget: Size(bytes), ..Limits::default() })
    }

    #[test]
    fn what_is_dropped_is_released_exactly() {
        let budget = budget(100_000);
        let mut first = budget.reserve(10_000).unwrap();
        let second = budget.reserve(500).unwrap();
        assert_eq!(budget.used(), 10_500);
        first.set(20_000).unwrap();
        first.shrink_to(30_000);
        assert_eq!(budget.used(), 20_500);
        first.shrink_to(3_000);
        assert_eq!(budget.used(), 3_500);
        drop(second);
        drop(first);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn large_reservations_leave_a_quarter_to_small_ones() {
        let budget = budget(100_000);
        let mut large = budget.reserve(50_000).unwrap();
        let refused = large.grow(25_001).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the request's memory (gateway.memory_budget) is over 75000B",
            "more than a request may ever have: repeating it is of no use"
        );
        let refused = budget.reserve(30_000).unwrap_err();
        assert_eq!((refused.status(), refused.retry_after()), (503, Some(Duration::from_secs(1))));
        assert_eq!(refused.to_string(), "the memory for requests is in use (gateway.memory_budget 100000B)");
        large.grow(25_000).unwrap();
        let small: Vec<_> = std::iter::from_fn(|| budget.reserve(SMALL).ok()).collect();
        assert_eq!(small.len(), 3);
        assert_eq!(budget.used(), 75_000 + 3 * SMALL);
        assert_eq!(budget.reserve(SMALL).unwrap_err().status(), 503);
    }

    #[test]
    fn many_small_pieces_cost_their_bytes_and_not_a_piece_each() {
        let (budget, most) = (budget(1 << 20), Size(10_000));
        let (mut bytes, mut memory) = (Vec::new(), budget.empty());
        for _ in 0..10_000 {
            append(&mut bytes, b"x", &mut memory, "body", most).unwrap();
            assert_eq!(budget.used(), bytes.capacity());
        }
        assert_eq!((bytes.len(), bytes.capacity()), (10_000, 10_000));
        let refused = append(&mut bytes, b"x", &mut memory, "body", most).unwrap_err();
        assert_eq!(refused.to_string(), "body is over 10000B");
    }
}
