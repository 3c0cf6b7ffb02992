//! An authenticated sender and its rate limit.

use std::{sync::Arc, time::Duration};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};

use crate::refusal::Refusal;

/// The SHA-256 of a token. Neither the token file nor this process keeps the token itself.
pub(super) type Hash = [u8; 32];

/// The token that authenticated a caller, and the generation of the token file that it was found in.
#[derive(Clone, Copy)]
pub(super) struct TokenRef {
    pub(super) hash: Hash,
    pub(super) generation: u64,
}

/// A sender that may send.
#[derive(Clone)]
pub(crate) struct Caller {
    name: Arc<str>,
    /// The only device whose readings it may send.
    device: Option<Arc<str>>,
    limit: Option<Arc<RateLimit>>,
    token: Option<TokenRef>,
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
        let refused = |retry_after| Refusal::RateLimited { per_second: self.per_second, retry_after };
        match self.limiter.check_n(records) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => {
                Err(refused(not_until.wait_time_from(governor::clock::DefaultClock::default().now())))
            }
            Err(_) => Err(refused(Duration::from_secs(1))),
        }
    }
}

impl Caller {
    /// A sender on a gateway that requires no authentication.
    pub(super) fn anonymous() -> Self {
        Self { name: "anonymous".into(), device: None, limit: None, token: None }
    }

    /// A sender with a client certificate.
    pub(super) fn certified(device: Arc<str>) -> Self {
        Self { name: Arc::clone(&device), device: Some(device), limit: None, token: None }
    }

    /// A sender with a token.
    pub(super) fn with_token(name: &str, limit: Option<Arc<RateLimit>>, token: TokenRef) -> Self {
        Self { name: name.into(), device: None, limit, token: Some(token) }
    }

    /// The same sender with the device of its certificate.
    pub(super) fn with_device(self, device: Option<Arc<str>>) -> Self {
        Self { device, ..self }
    }

    pub(super) fn device(&self) -> Option<&Arc<str>> {
        self.device.as_ref()
    }

    pub(super) fn token(&self) -> Option<TokenRef> {
        self.token
    }

    /// Its name in the answer to `auth`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Checks that it may send records of these devices now.
    ///
    /// # Errors
    /// [`Refusal::ForeignDevice`] with the index of the record, or [`Refusal::RateLimited`].
    pub(crate) fn admit<'a>(
        &self,
        mut devices: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        let records = devices.len();
        if let Some(own) = &self.device
            && let Some((record, device)) = devices.by_ref().enumerate().find(|(_, device)| *device != &**own)
        {
            let (device, subject) = (device.to_owned(), own.to_string());
            return Err(Refusal::ForeignDevice { record, device, subject });
        }
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(records))
    }

    /// Checks that it may send a task of this kind now. A device with a certificate may not: the devices in a task's
    /// payload are not checked.
    ///
    /// # Errors
    /// [`Refusal::DeviceTask`] or [`Refusal::RateLimited`].
    pub(crate) fn admit_task(&self, kind: &str) -> Result<(), Refusal> {
        if let Some(subject) = &self.device {
            let (kind, subject) = (kind.to_owned(), subject.to_string());
            return Err(Refusal::DeviceTask { kind, subject });
        }
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(1))
    }
}
