//! Limits on records per second.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use garenne_common::lock::lock;
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};
use lru::LruCache;

use crate::refusal::Refusal;

/// Most senders of one entry whose use is remembered. Beyond it, the one that was idle for longest starts again.
const MAX_SENDERS: NonZeroUsize = NonZeroUsize::new(16_384).expect("a constant");

/// The rate of an entry of the senders file, which each of its senders has on its own.
pub(super) struct Rate {
    per_second: u32,
    burst: u32,
    quota: Quota,
    senders: Mutex<LruCache<Box<str>, Arc<RateLimit>>>,
}

/// The rate limit of one sender.
pub(super) struct RateLimit {
    per_second: u32,
    burst: u32,
    limiter: DefaultDirectRateLimiter,
}

impl Rate {
    /// `per_second` records on average. The burst is at least `max_request_records`, so that the largest allowed
    /// request is accepted. `None` if one of them is 0.
    pub(super) fn new(per_second: u32, max_request_records: u32) -> Option<Self> {
        let burst = per_second.max(max_request_records);
        let quota = Quota::per_second(per_second.try_into().ok()?).allow_burst(burst.try_into().ok()?);
        Some(Self { per_second, burst, quota, senders: Mutex::new(LruCache::new(MAX_SENDERS)) })
    }

    /// The limit of the sender with this name, which all of its connections share.
    pub(super) fn of(&self, sender: &str) -> Arc<RateLimit> {
        let mut senders = lock(&self.senders);
        if let Some(limit) = senders.get(sender) {
            return Arc::clone(limit);
        }
        let Self { per_second, burst, quota, .. } = *self;
        let limit = Arc::new(RateLimit { per_second, burst, limiter: RateLimiter::direct(quota) });
        senders.put(sender.into(), Arc::clone(&limit));
        limit
    }
}

impl RateLimit {
    /// Takes `records` from the limit: all of them or none. A refusal says for how long the limit is used up, or that
    /// one request may not have more records than the burst.
    pub(super) fn take(&self, records: usize) -> Result<(), Refusal> {
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        let Ok(records) = records.try_into() else { return Ok(()) };
        let too_many =
            || Refusal::too_many("records at once, which the sender's rate allows", self.burst as usize);
        let checked = self.limiter.check_n(records).map_err(|_| too_many())?;
        checked.map_err(|not_until| {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            Refusal::rate_limited(self.per_second, wait)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_sender_of_an_entry_has_its_own_limit() {
        let rate = Rate::new(5, 10).unwrap();
        // The burst is as large as the largest request.
        rate.of("a").take(10).unwrap();
        let refusal = rate.of("a").take(10).unwrap_err();
        assert_eq!(refusal.to_string(), "rate limit of 5 records per second exceeded");
        let wait = refusal.retry_after.unwrap();
        assert!(wait > Duration::from_secs(1) && wait <= Duration::from_secs(2), "{wait:?}");
        rate.of("b").take(10).unwrap();
        let refusal = rate.of("c").take(11).unwrap_err();
        assert_eq!(refusal.to_string(), "body: more than 10 records at once, which the sender's rate allows");
        rate.of("c").take(10).unwrap();
    }

    #[test]
    fn the_number_of_remembered_senders_is_bounded() {
        let rate = Rate::new(1, 1).unwrap();
        (0..MAX_SENDERS.get() + 10).for_each(|n| rate.of(&n.to_string()).take(1).unwrap());
        assert_eq!(rate.senders.lock().unwrap().len(), MAX_SENDERS.get());
    }
}
