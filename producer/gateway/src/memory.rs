//! One memory budget for everything that senders cause: bodies, decompressed data, parsed records, unconfirmed tasks,
//! and answers that are not written yet.
//!
//! A [`Reservation`] is stored next to the memory that it covers and is released when it is dropped. The fixed memory
//! of a connection (its task, its first buffers) is limited by the number of connections and is not part of the
//! budget.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_common::config::Size;

use crate::{limits::Limits, refusal::Refusal};

/// Reservations of at most this many bytes (a few readings) may use the whole budget. Larger ones share three
/// quarters of it, so that many large or slow bodies leave room for small requests.
const SMALL: usize = 8 * 1024;

/// The gateway's memory budget. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: Size,
    used: AtomicUsize,
    retry_after: Duration,
}

impl MemoryBudget {
    /// The budget `memory_budget`.
    pub fn new(limits: &Limits) -> Self {
        let (limit, retry_after) = (limits.memory_budget, limits.retry_after);
        Self(Arc::new(Shared { limit, used: AtomicUsize::new(0), retry_after }))
    }

    /// The bytes that are reserved.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// A reservation of 0 bytes.
    pub(super) fn empty(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    /// Reserves `bytes` bytes.
    ///
    /// # Errors
    /// As [`Reservation::grow`].
    pub(super) fn reserve(&self, bytes: usize) -> Result<Reservation, Refusal> {
        let mut reservation = self.empty();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// The refusal while the budget is used up.
    pub(super) fn exhausted(&self) -> Refusal {
        let Shared { limit, retry_after, .. } = &*self.0;
        let why = format!("the memory for requests is in use (gateway.memory_budget {limit})");
        Refusal::overloaded(why, *retry_after)
    }
}

/// A part of the budget, released when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl Reservation {
    /// Reserves `more` bytes in addition.
    ///
    /// # Errors
    /// The budget is used up by others, or the reservation exceeds what one request may use. The reservation is then
    /// unchanged.
    pub(super) fn grow(&mut self, more: usize) -> Result<(), Refusal> {
        let Shared { limit, used, .. } = &*self.budget.0;
        let largest = limit.bytes() / 4 * 3;
        let wanted = self.bytes.saturating_add(more);
        if wanted > largest {
            let limit = Size(largest as u64);
            return Err(Refusal::too_large("the request's memory (gateway.memory_budget)", limit));
        }
        let ceiling = if wanted <= SMALL { limit.bytes() } else { largest };
        let taken = used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|total| *total <= ceiling)
        });
        if taken.is_err() {
            return Err(self.budget.exhausted());
        }
        self.bytes = wanted;
        Ok(())
    }

    /// Sets the reservation to `bytes`, more or less than before.
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

    /// Reduces the reservation to at most `bytes`.
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

/// Appends `data` to `bytes` and keeps `memory` equal to the capacity of `bytes`. `limit` bounds the length.
///
/// # Errors
/// There are too many bytes of `what`, or as [`Reservation::grow`].
pub(super) fn append(
    bytes: &mut Vec<u8>,
    data: &[u8],
    memory: &mut Reservation,
    what: &str,
    limit: Size,
) -> Result<(), Refusal> {
    let needed = bytes.len() + data.len();
    if needed > limit.bytes() {
        return Err(Refusal::too_large(what, limit));
    }
    if needed > bytes.capacity() {
        let capacity = needed.max(bytes.capacity() * 2).clamp(256, limit.bytes().max(256));
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
    fn dropped_reservations_are_released() {
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
    fn large_reservations_leave_a_quarter_for_small_ones() {
        let budget = budget(100_000);
        let mut large = budget.reserve(50_000).unwrap();
        let refused = large.grow(25_001).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the request's memory (gateway.memory_budget) is larger than 75000B",
            "it can never succeed, so it is no 503"
        );
        let refused = budget.reserve(30_000).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retry_after), (503, Some(Duration::from_secs(1))));
        assert_eq!(refused.to_string(), "the memory for requests is in use (gateway.memory_budget 100000B)");
        large.grow(25_000).unwrap();
        let small: Vec<_> = std::iter::from_fn(|| budget.reserve(SMALL).ok()).collect();
        assert_eq!(small.len(), 3);
        assert_eq!(budget.used(), 75_000 + 3 * SMALL);
        assert_eq!(budget.reserve(SMALL).unwrap_err().status, 503);
    }

    #[test]
    fn many_small_chunks_reserve_their_bytes_only() {
        let (budget, limit) = (budget(1 << 20), Size(10_000));
        let (mut bytes, mut memory) = (Vec::new(), budget.empty());
        for _ in 0..10_000 {
            append(&mut bytes, b"x", &mut memory, "body", limit).unwrap();
            assert_eq!(budget.used(), bytes.capacity());
        }
        assert_eq!((bytes.len(), bytes.capacity()), (10_000, 10_000));
        let refused = append(&mut bytes, b"x", &mut memory, "body", limit).unwrap_err();
        assert_eq!(refused.to_string(), "body is larger than 10000B");
    }
}
