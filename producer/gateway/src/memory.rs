//! One memory budget for everything that senders cause: bodies, decompressed data, parsed records, unconfirmed tasks,
//! and answers that are not written yet.
//!
//! A [`Reservation`] is stored next to the memory that it covers and is released when it is dropped. It counts for its
//! connection and for the source of that, whose shares are bounded. The fixed memory of a connection (its task, its
//! first buffers) is limited by the number of connections and is not part of the budget.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_common::config::Size;

use crate::{limits::Limits, refusal::Refusal, source_limit::Source};

/// A connection that holds at most this many bytes (a few readings) may use the whole budget. The others share three
/// quarters of it, so that many large, slow or unread requests leave room for single readings. It is what a connection
/// holds that counts, and not the size of each reservation: a thousand small ones are a large one.
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

/// What a connection holds of the budget. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Account(Arc<Holding>);

#[derive(Debug)]
struct Holding {
    budget: MemoryBudget,
    used: AtomicUsize,
    /// The source of the connection, if connections are counted by source.
    source: Option<Arc<Source>>,
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

    /// The account of a connection of this source.
    pub(super) fn account(&self, source: Option<Arc<Source>>) -> Account {
        Account(Arc::new(Holding { budget: self.clone(), used: AtomicUsize::new(0), source }))
    }

    /// The refusal while the budget is used up.
    pub(super) fn exhausted(&self) -> Refusal {
        let Shared { limit, retry_after, .. } = &*self.0;
        let why = format!("the memory for requests is in use (gateway.memory_budget {limit})");
        Refusal::overloaded(why, *retry_after)
    }
}

impl Account {
    /// A reservation of 0 bytes.
    pub(super) fn empty(&self) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    pub(super) fn reserve(&self, bytes: usize) -> Result<Reservation, Refusal> {
        let mut reservation = self.empty();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// The refusal while the budget, or the share of the connection's source, is used up.
    pub(super) fn exhausted(&self) -> Refusal {
        self.0.budget.exhausted()
    }

    /// Whether the connection should wait for its own answers before it reads more: half of the budget is in use, and
    /// with another request it may hold more than a few readings need. Its requests would soon be refused.
    pub(super) fn should_wait(&self) -> bool {
        let Holding { budget, used, .. } = &*self.0;
        used.load(Ordering::Relaxed) > SMALL / 2 && budget.used() > budget.0.limit.bytes() / 2
    }

    /// Takes `more` bytes: all of them or none.
    fn take(&self, more: usize) -> bool {
        let Holding { budget, used, source } = &*self.0;
        let limit = budget.0.limit.bytes();
        let held = used.fetch_add(more, Ordering::AcqRel).saturating_add(more);
        let is_small = held <= SMALL;
        let take = |counter: &AtomicUsize, allowed: &dyn Fn(usize) -> bool| {
            let add = |taken: usize| taken.checked_add(more).filter(|total| allowed(*total));
            counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
        };
        // The connections of a source leave half of the budget to other sources, and half of what is kept for single
        // readings. A connection alone may hold what one request may need.
        let of_source = if is_small { limit / 8 * 5 } else { limit / 2 };
        let in_source = source
            .as_ref()
            .is_none_or(|source| take(&source.reserved, &|total| total <= of_source || total <= held));
        if in_source {
            let ceiling = if is_small { limit } else { limit / 4 * 3 };
            if take(&budget.0.used, &|total| total <= ceiling) {
                return true;
            }
            if let Some(source) = source {
                source.reserved.fetch_sub(more, Ordering::AcqRel);
            }
        }
        used.fetch_sub(more, Ordering::AcqRel);
        false
    }

    fn give_back(&self, bytes: usize) {
        let Holding { budget, used, source } = &*self.0;
        budget.0.used.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(source) = source {
            source.reserved.fetch_sub(bytes, Ordering::AcqRel);
        }
        used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// A part of the budget, released when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    account: Account,
    bytes: usize,
}

impl Reservation {
    /// Reserves `more` bytes in addition. Refused if the budget or the share of the source is used up by others, or
    /// the reservation exceeds what one request may use. It is then unchanged.
    pub(super) fn grow(&mut self, more: usize) -> Result<(), Refusal> {
        let largest = self.account.0.budget.0.limit.bytes() / 4 * 3;
        let wanted = self.bytes.saturating_add(more);
        if wanted > largest {
            let limit = Size(largest as u64);
            return Err(Refusal::too_large("the request's memory (gateway.memory_budget)", limit));
        }
        if !self.account.take(more) {
            return Err(self.account.exhausted());
        }
        self.bytes = wanted;
        Ok(())
    }

    /// Sets the reservation to `bytes`, more or less than before.
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
        self.account.give_back(bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

/// Appends `data` to `bytes` and keeps `memory` equal to the capacity of `bytes`. `limit` bounds the length.
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
    use crate::source_limit::SourceLimit;

    impl MemoryBudget {
        /// A reservation of a connection of its own.
        pub(crate) fn reserve(&self, bytes: usize) -> Result<Reservation, Refusal> {
            self.account(None).reserve(bytes)
        }

        /// As [`MemoryBudget::reserve`], of 0 bytes.
        pub(crate) fn empty(&self) -> Reservation {
            self.account(None).empty()
        }
    }

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
    fn many_small_reservations_of_a_connection_are_a_large_one() {
        let budget = budget(100_000);
        let connection = budget.account(None);
        let held: Vec<_> = std::iter::from_fn(|| connection.reserve(1000).ok()).collect();
        assert_eq!((held.len(), budget.used()), (75, 75_000));
        assert_eq!(connection.reserve(1000).unwrap_err().status, 503);
        assert!(connection.should_wait(), "its own answers release memory");
        let other = budget.account(None);
        let few: Vec<_> = std::iter::from_fn(|| other.reserve(1000).ok()).collect();
        assert_eq!(few.len(), 8, "the last quarter is kept for connections with a few readings");
        drop(held);
        assert_eq!((budget.used(), connection.0.used.load(Ordering::Relaxed)), (8000, 0));
        assert!(!other.should_wait());
    }

    #[test]
    fn the_connections_of_a_source_leave_half_of_the_budget_to_others() {
        let (budget, sources) = (budget(100_000), SourceLimit::new(100));
        let account = |address: [u8; 4]| {
            let permit = sources.admit(address.into()).unwrap();
            budget.account(permit.source())
        };
        let (alone, others) = (account([10, 0, 0, 1]), account([10, 0, 0, 1]));
        let request = alone.reserve(75_000).unwrap();
        assert_eq!(others.reserve(10_000).unwrap_err().status, 503);
        drop(request);
        let held: Vec<_> = (0..10).filter_map(|_| account([10, 0, 0, 1]).reserve(9_000).ok()).collect();
        assert_eq!((held.len(), budget.used()), (5, 45_000));
        let single: Vec<_> = (0..50).filter_map(|_| account([10, 0, 0, 1]).reserve(2_000).ok()).collect();
        assert_eq!((single.len(), budget.used()), (8, 61_000), "single readings may use an eighth more");
        let elsewhere = account([10, 0, 0, 2]);
        drop(elsewhere.reserve(14_000).unwrap());
        let singles: Vec<_> = (0..50).filter_map(|_| account([10, 0, 0, 2]).reserve(2_000).ok()).collect();
        assert_eq!(singles.len(), 19);
        drop((held, single, singles));
        drop(others.reserve(50_000).unwrap());
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
