//! Limits failed logins per address, so that one address can neither guess on nor lock out the others.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Mutex,
    time::Duration,
};

use axum::http::StatusCode;
use garenne_common::{lock::lock, telemetry::admin::network};
use tokio::time::Instant;

use super::problem::Problem;

/// Failed logins of one address within [`WINDOW`]. Beyond it, passwords are not compared.
const MAX_FAILURES: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Most addresses that are remembered. Beyond it, the one whose last failure is oldest is forgotten.
const MAX_ADDRESSES: usize = 10_000;

/// The failed logins of the last minute.
#[derive(Default)]
pub(super) struct LoginLimit(Mutex<HashMap<IpAddr, VecDeque<Instant>>>);

/// A login that is being checked. It counts as failed until [`Attempt::succeeded`], so that logins that are sent at the
/// same time do not exceed the limit.
pub(super) struct Attempt<'a> {
    limit: &'a LoginLimit,
    address: IpAddr,
    at: Instant,
}

impl LoginLimit {
    /// Counts a login of `address`. Refuses it if the address has failed too often.
    pub(super) fn begin(&self, address: IpAddr) -> Result<Attempt<'_>, Problem> {
        let (address, now) = (network(address), Instant::now());
        let mut failures = lock(&self.0);
        if failures.len() >= MAX_ADDRESSES && !failures.contains_key(&address) {
            failures.retain(|_, times| times.back().is_some_and(|at| now - *at < WINDOW));
            let oldest = failures.iter().min_by_key(|(_, times)| times.back().copied()).map(|(ip, _)| *ip);
            if let Some(oldest) = oldest.filter(|_| failures.len() >= MAX_ADDRESSES) {
                failures.remove(&oldest);
            }
        }
        let times = failures.entry(address).or_default();
        times.retain(|at| now - *at < WINDOW);
        if times.len() >= MAX_FAILURES {
            let detail = "too many failed logins from this address: wait a minute";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
        }
        times.push_back(now);
        Ok(Attempt { limit: self, address, at: now })
    }
}

impl Attempt<'_> {
    /// Does not count as failed. Earlier failures still do: a person with a valid password must not be
    /// able to guess that of another person without a limit.
    pub(super) fn succeeded(self) {
        let mut failures = lock(&self.limit.0);
        let Some(times) = failures.get_mut(&self.address) else { return };
        if let Some(own) = times.iter().position(|at| *at == self.at) {
            times.remove(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(limit: &LoginLimit, address: &str) -> Result<(), StatusCode> {
        limit.begin(address.parse().unwrap()).map(drop).map_err(|problem| problem.status())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_failed_too_often_waits_and_the_others_do_not() {
        let limit = LoginLimit::default();
        for _ in 0..MAX_FAILURES {
            assert_eq!(status(&limit, "192.0.2.1"), Ok(()));
        }
        assert_eq!(status(&limit, "192.0.2.1"), Err(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(status(&limit, "::ffff:192.0.2.1"), Err(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(status(&limit, "192.0.2.2"), Ok(()));
        tokio::time::advance(WINDOW).await;
        assert_eq!(status(&limit, "192.0.2.1"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_is_no_failure_and_a_network_of_ipv6_counts_as_one() {
        let limit = LoginLimit::default();
        for _ in 0..MAX_FAILURES * 2 {
            limit.begin("2001:db8::1".parse().unwrap()).unwrap().succeeded();
        }
        for _ in 0..MAX_FAILURES - 1 {
            assert_eq!(status(&limit, "2001:db8::2"), Ok(()));
        }
        limit.begin("2001:db8::1".parse().unwrap()).unwrap().succeeded();
        assert_eq!(status(&limit, "2001:db8::3"), Ok(()), "the success does not forget the failures");
        assert!(status(&limit, "2001:db8::4").is_err());
        assert_eq!(status(&limit, "2001:db8:0:1::4"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_for_addresses_is_bounded() {
        let limit = LoginLimit::default();
        for n in 0..MAX_ADDRESSES as u32 + 10 {
            limit.begin(std::net::Ipv4Addr::from(n).into()).map(drop).unwrap();
            tokio::time::advance(Duration::from_micros(1)).await;
        }
        let failures = lock(&limit.0);
        assert_eq!(failures.len(), MAX_ADDRESSES);
        assert!(!failures.contains_key(&std::net::Ipv4Addr::from(9).into()), "the oldest is forgotten");
    }
}
