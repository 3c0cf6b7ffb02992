//! Detects a consumer that the broker has forgotten: messages are ready, the consumer has credit, and nothing is
//! delivered. The broker reports no error in this case.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::channel_generation::ChannelGeneration;

/// Time without a delivery after which the queue is checked, time between two checks, and timeout of a check.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Checks in a row that must find ready messages before the consumer counts as forgotten.
const MAX_FAILED_CHECKS: u32 = 2;

/// Watches one consumer.
pub(super) struct Watchdog<R> {
    /// Returns the number of ready messages in the queue, or `None` if the broker does not answer.
    ready_messages: R,
    prefetch: u64,
    generation: Arc<ChannelGeneration>,
    last_check: Instant,
    failed_checks: FailedChecks,
}

impl<R, F> Watchdog<R>
where
    R: Fn() -> F,
    F: Future<Output = Option<u32>>,
{
    pub(super) fn new(prefetch: u16, generation: Arc<ChannelGeneration>, ready_messages: R) -> Self {
        Self {
            ready_messages,
            prefetch: prefetch.into(),
            generation,
            last_check: Instant::now(),
            failed_checks: FailedChecks::default(),
        }
    }

    /// When to call [`is_forgotten`](Self::is_forgotten) next.
    pub(super) fn next_check(&self) -> Instant {
        self.last_check + CHECK_INTERVAL
    }

    /// Checks the consumer. True if it must be replaced.
    pub(super) async fn is_forgotten(&mut self) -> bool {
        let deliveries = self.generation.deliveries();
        self.last_check = Instant::now();
        let has_credit = self.generation.outstanding() < self.prefetch;
        if !self.failed_checks.should_check_queue(deliveries, has_credit) {
            return false;
        }
        let ready = tokio::time::timeout(CHECK_INTERVAL, (self.ready_messages)()).await;
        // An error counts as no: the consumer notices a dead channel itself.
        let messages_ready = ready.ok().flatten().is_some_and(|ready| ready > 0);
        self.failed_checks.record(messages_ready, self.generation.deliveries())
    }
}

/// Counts checks in a row that found ready messages and no delivery.
#[derive(Debug, Default)]
struct FailedChecks {
    /// The delivery count at the last check.
    deliveries: u64,
    count: u32,
}

impl FailedChecks {
    /// Whether to check the queue: no delivery since the last check, although the consumer has credit.
    fn should_check_queue(&mut self, deliveries: u64, has_credit: bool) -> bool {
        let received = deliveries != std::mem::replace(&mut self.deliveries, deliveries);
        if received || !has_credit {
            self.count = 0;
        }
        !received && has_credit
    }

    /// Records a check, and returns whether it was one too many. A delivery during the check resets the count.
    fn record(&mut self, messages_ready: bool, deliveries: u64) -> bool {
        let failed = messages_ready && deliveries == self.deliveries;
        self.count = if failed { self.count + 1 } else { 0 };
        self.count >= MAX_FAILED_CHECKS
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use garenne_protocol::settlement::Settlement;

    use super::*;
    use crate::consumer::channel_generation::SettleRequest;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_checked_every_ten_seconds_while_the_consumer_has_credit() {
        let (generation, checks) = (ChannelGeneration::mock(), Cell::new(0));
        let ready_messages = || {
            checks.set(checks.get() + 1);
            std::future::ready(Some(1))
        };
        let mut watchdog = Watchdog::new(2, Arc::clone(&generation), ready_messages);
        let start = Instant::now();
        assert_eq!(watchdog.next_check(), start + Duration::from_secs(10));
        (0..2).for_each(|_| generation.count_delivery(false));
        assert!(!watchdog.is_forgotten().await, "two were delivered");
        tokio::time::sleep_until(watchdog.next_check()).await;
        assert!(!watchdog.is_forgotten().await && !watchdog.is_forgotten().await, "no credit");
        assert_eq!((checks.get(), watchdog.next_check()), (0, start + Duration::from_secs(20)));
        generation.request_settlement(SettleRequest { tag: 1, settlement: Settlement::Acked });
        assert!(!watchdog.is_forgotten().await, "first failed check");
        assert!(watchdog.is_forgotten().await, "second failed check");
        assert_eq!(checks.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_check_or_an_empty_queue_is_no_failed_check() {
        let answers = [None, Some(0)];
        for answer in answers {
            let mut watchdog = Watchdog::new(2, ChannelGeneration::mock(), || std::future::ready(answer));
            for _ in 0..3 {
                assert!(!watchdog.is_forgotten().await, "{answer:?}");
            }
        }
        let mut watchdog = Watchdog::new(2, ChannelGeneration::mock(), std::future::pending);
        let start = Instant::now();
        assert!(!watchdog.is_forgotten().await);
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }

    /// Checks the queue, given the delivery counts before and after the check.
    fn check(checks: &mut FailedChecks, before: u64, messages_ready: bool, after: u64) -> bool {
        assert!(checks.should_check_queue(before, true));
        checks.record(messages_ready, after)
    }

    #[test]
    fn two_failed_checks_in_a_row_show_a_forgotten_consumer() {
        let mut checks = FailedChecks::default();
        assert!(!checks.should_check_queue(7, true), "seven were delivered since the last check");
        assert!(!check(&mut checks, 7, true, 7));
        assert!(check(&mut checks, 7, true, 7));
    }

    #[test]
    fn an_empty_queue_a_delivery_or_missing_credit_resets_the_count() {
        for reset_by in 0..4 {
            let mut checks = FailedChecks::default();
            assert!(!check(&mut checks, 0, true, 0));
            let mut deliveries = 0;
            match reset_by {
                0 => assert!(!check(&mut checks, 0, false, 0), "the queue is empty"),
                1 => assert!(!checks.should_check_queue(0, false), "no credit"),
                2 => {
                    deliveries = 1;
                    assert!(!checks.should_check_queue(deliveries, true), "one was delivered");
                }
                _ => {
                    deliveries = 1;
                    assert!(!check(&mut checks, 0, true, deliveries), "one was delivered during the check");
                    assert!(!checks.should_check_queue(deliveries, true));
                }
            }
            assert!(!check(&mut checks, deliveries, true, deliveries), "{reset_by}: counted from zero");
            assert!(check(&mut checks, deliveries, true, deliveries));
        }
    }
}
