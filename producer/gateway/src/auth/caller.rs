//! An authenticated sender and its rate limit.

use std::sync::Arc;

use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};

use crate::refusal::Refusal;

/// The SHA-256 of a token. Neither the token file nor this process keeps the token itself.
pub(super) type Hash = [u8; 32];

/// A sender that may send.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Its name in the answer to `auth`.
    pub(crate) name: Arc<str>,
    /// The only device whose readings it may send.
    pub(super) device: Option<Arc<str>>,
    pub(super) limit: Option<Arc<RateLimit>>,
    /// The hash of its token.
    pub(super) token: Option<Hash>,
}

/// A limit on records per second.
pub(super) struct RateLimit {
    per_second: u32,
    burst: u32,
    limiter: DefaultDirectRateLimiter,
}

impl RateLimit {
    /// `per_second` records on average. The burst is at least `max_request_records`, so that the largest allowed
    /// request is accepted. `None` if one of them is 0.
    pub(super) fn new(per_second: u32, max_request_records: u32) -> Option<Self> {
        let burst = per_second.max(max_request_records);
        let quota = Quota::per_second(per_second.try_into().ok()?).allow_burst(burst.try_into().ok()?);
        Some(Self { per_second, burst, limiter: RateLimiter::direct(quota) })
    }

    fn take(&self, records: usize) -> Result<(), Refusal> {
        let records = u32::try_from(records).unwrap_or(u32::MAX).min(self.burst);
        let Ok(records) = records.try_into() else { return Ok(()) };
        let checked = self.limiter.check_n(records).expect("not more than the burst");
        checked.map_err(|not_until| {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            Refusal::rate_limited(self.per_second, wait)
        })
    }
}

impl Caller {
    /// A sender with the certificate of `device`, or any sender on a gateway that requires no authentication.
    pub(super) fn without_token(device: Option<Arc<str>>) -> Self {
        let name = device.clone().unwrap_or_else(|| "anonymous".into());
        Self { name, device, limit: None, token: None }
    }

    /// Checks that it may send records of these devices now.
    ///
    /// # Errors
    /// A record of another device than the certificate's, or too many records for its rate limit.
    pub(crate) fn admit<'a>(
        &self,
        mut devices: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        let records = devices.len();
        if let Some(own) = &self.device
            && let Some((record, device)) = devices.by_ref().enumerate().find(|(_, device)| *device != &**own)
        {
            return Err(Refusal::foreign_device(record, device, own));
        }
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(records))
    }

    /// Checks that it may send a task of this kind now. A device with a certificate may not: the devices in a task's
    /// payload are not checked.
    ///
    /// # Errors
    /// It has a certificate, or its rate limit is used up.
    pub(crate) fn admit_task(&self, kind: &str) -> Result<(), Refusal> {
        if let Some(subject) = &self.device {
            return Err(Refusal::device_task(kind, subject));
        }
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(1))
    }
}
