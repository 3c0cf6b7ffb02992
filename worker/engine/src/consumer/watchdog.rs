//! Notices a consumer that the broker has forgotten: messages wait, there is credit, and nothing
//! comes. No error tells of that; only looking does.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::channel_generation::ChannelGeneration;

/// How long nothing may come before the queue is looked at, and between two looks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks in a row that must find messages waiting.
const LOOKS: u32 = 2;

/// Watches one consumer.
pub(super) struct Watchdog<L> {
    /// Answers how many messages are ready in the queue, where that can be told.
    look: L,
    prefetch: u64,
    generation: Arc<ChannelGeneration>,
    since: Instant,
    suspicion: MissedChecks,
}

impl<L, R> Watchdog<L>
where
    L: Fn() -> R,
    R: Future<Output = Option<u32>>,
{
    pub(super) fn new(prefetch: u16, generation: Arc<ChannelGeneration>, look: L) -> Self {
        let suspicion = MissedChecks::default();
        Self { look, prefetch: prefetch.into(), generation, since: Instant::now(), suspicion }
    }

    /// When it wants to look next.
    pub(super) fn due(&self) -> Instant {
        self.since + PATIENCE
    }

    /// Looks. True when the consumer must be given up.
    pub(super) async fn barks(&mut self) -> bool {
        let deliveries = self.generation.deliveries();
        self.since = Instant::now();
        if !self.suspicion.wants_to_look(deliveries, self.generation.outstanding() < self.prefetch) {
            return false;
        }
        let waiting = self.waiting().await;
        self.suspicion.saw(waiting, self.generation.deliveries())
    }

    /// Whether ready messages are there; unknown counts as no, other errors are noticed elsewhere.
    async fn waiting(&self) -> bool {
        tokio::time::timeout(PATIENCE, (self.look)()).await.ok().flatten().is_some_and(|ready| ready > 0)
    }
}

/// What speaks against a consumer so far.
#[derive(Debug, Default)]
struct MissedChecks {
    /// Deliveries when it was last looked at.
    seen: u64,
    looks: u32,
}

impl MissedChecks {
    /// Whether it is worth looking at the queue: nothing came since the last time, and there is credit for it.
    fn wants_to_look(&mut self, deliveries: u64, credit: bool) -> bool {
        let came = deliveries != std::mem::replace(&mut self.seen, deliveries);
        if came || !credit {
            self.looks = 0;
        }
        !came && credit
    }

    /// Notes whether messages waited when it was looked, and answers whether that was once too often. What
    /// came while it was looked clears the consumer.
    fn saw(&mut self, waiting: bool, deliveries: u64) -> bool {
        self.looks = if waiting && deliveries == self.seen { self.looks + 1 } else { 0 };
        self.looks >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use garenne_common::{shutdown::Settlement, telemetry::Metrics};

    use super::*;
    use crate::consumer::{SettlementCounters, channel_generation::SettleRequest};

    fn generation() -> Arc<ChannelGeneration> {
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        Arc::new(ChannelGeneration::new(counters, 1))
    }

    #[tokio::test(start_paused = true)]
    async fn it_looks_every_ten_seconds_and_only_where_there_is_credit() {
        let (generation, looks) = (generation(), Cell::new(0));
        let look = || {
            looks.set(looks.get() + 1);
            std::future::ready(Some(1))
        };
        let mut watchdog = Watchdog::new(2, Arc::clone(&generation), look);
        let begun = Instant::now();
        assert_eq!(watchdog.due(), begun + Duration::from_secs(10));
        (0..2).for_each(|_| generation.count_delivery(false));
        assert!(!watchdog.barks().await, "two came");
        tokio::time::sleep_until(watchdog.due()).await;
        assert!(!watchdog.barks().await && !watchdog.barks().await, "no credit");
        assert_eq!((looks.get(), watchdog.due()), (0, begun + Duration::from_secs(20)));
        generation.order(SettleRequest { tag: 1, settlement: Settlement::Acked });
        assert!(!watchdog.barks().await, "the first look in vain");
        assert!(watchdog.barks().await, "the second");
        assert_eq!(looks.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_without_an_answer_or_at_an_empty_queue_says_nothing() {
        let answers = [None, Some(0)];
        for answer in answers {
            let mut watchdog = Watchdog::new(2, generation(), || std::future::ready(answer));
            for _ in 0..3 {
                assert!(!watchdog.barks().await, "{answer:?}");
            }
        }
        let mut watchdog = Watchdog::new(2, generation(), std::future::pending);
        let begun = Instant::now();
        assert!(!watchdog.barks().await);
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
    }

    /// A look at so many deliveries in all, at messages that wait, and with so many deliveries afterwards.
    fn look(suspicion: &mut MissedChecks, deliveries: u64, waiting: bool, after: u64) -> bool {
        assert!(suspicion.wants_to_look(deliveries, true));
        suspicion.saw(waiting, after)
    }

    #[test]
    fn messages_that_wait_in_vain_at_two_looks_in_a_row_are_enough() {
        let mut suspicion = MissedChecks::default();
        assert!(!suspicion.wants_to_look(7, true), "seven have just come");
        assert!(!look(&mut suspicion, 7, true, 7));
        assert!(look(&mut suspicion, 7, true, 7));
    }

    #[test]
    fn an_empty_queue_a_delivery_and_a_lack_of_credit_each_clear_it() {
        for cleared in 0..4 {
            let mut suspicion = MissedChecks::default();
            assert!(!look(&mut suspicion, 0, true, 0));
            let mut seen = 0;
            match cleared {
                0 => assert!(!look(&mut suspicion, 0, false, 0), "the queue is empty"),
                1 => assert!(!suspicion.wants_to_look(0, false), "no credit, so nothing may come"),
                2 => {
                    seen = 1;
                    assert!(!suspicion.wants_to_look(seen, true), "one came");
                }
                _ => {
                    seen = 1;
                    assert!(!look(&mut suspicion, 0, true, seen), "one came while it was looked");
                    assert!(!suspicion.wants_to_look(seen, true));
                }
            }
            assert!(!look(&mut suspicion, seen, true, seen), "{cleared}: it begins anew");
            assert!(look(&mut suspicion, seen, true, seen));
        }
    }
}
