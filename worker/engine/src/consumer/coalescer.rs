//! Coalesces deliveries under load, so that one thread wake-up serves many of them.
//!
//! Waking the receiving thread and then a handler thread costs more than most tasks. Above
//! [`COALESCE_RATE`] the consumer takes deliveries once per tick; below it, immediately.

use std::time::Duration;

use tokio::time::Instant;

/// Tick length for a lane with one queue.
const TICK: Duration = Duration::from_millis(2);
/// Tick length for a lane with several queues, each of which receives only a share of the deliveries.
///
/// A longer tick puts more deliveries into each ack. That saves most for a replicated queue, because every entry
/// of its log goes to other nodes.
const SHARDED_TICK: Duration = Duration::from_millis(8);
/// Deliveries per millisecond, summed over a lane's queues, above which deliveries are coalesced.
const COALESCE_RATE: u128 = 8;
/// Smallest prefetch with which deliveries are coalesced. With less, the broker would run out of credit within
/// a tick and the worker out of tasks.
const MIN_PREFETCH: u16 = 128;

/// The ticks of a lane. All queues of the lane share them, so that one wake-up serves all queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickClock {
    start: Instant,
    tick: Duration,
    /// Deliveries per queue and tick from which on deliveries are coalesced.
    threshold: usize,
}

impl TickClock {
    /// Creates the clock of a lane with this number of queues.
    pub(super) fn new(queues: usize) -> Self {
        let tick = if queues > 1 { SHARDED_TICK } else { TICK };
        let threshold = COALESCE_RATE * tick.as_millis() / queues.max(1) as u128;
        let threshold = usize::try_from(threshold).unwrap_or(usize::MAX).max(2);
        Self { start: Instant::now(), tick, threshold }
    }

    /// The start of the tick that contains `now`.
    fn current_tick(&self, now: Instant) -> Instant {
        let elapsed = now.duration_since(self.start).as_nanos() % self.tick.as_nanos();
        now - Duration::from_nanos(u64::try_from(elapsed).expect("less than a tick"))
    }

    /// The start of the first tick after `now`.
    pub(super) fn next_tick(&self, now: Instant) -> Instant {
        self.current_tick(now) + self.tick
    }
}

/// Decides how long the consumer waits before it takes the next deliveries.
pub(super) struct DeliveryCoalescer {
    clock: TickClock,
    /// False if the prefetch is so small that waiting would leave the broker without credit.
    enabled: bool,
    /// The tick in which `received_in_tick` deliveries were taken.
    current_tick: Instant,
    received_in_tick: usize,
    more_ready: bool,
}

impl DeliveryCoalescer {
    pub(super) fn new(prefetch: u16, clock: TickClock) -> Self {
        Self {
            clock,
            enabled: prefetch >= MIN_PREFETCH,
            current_tick: clock.start,
            received_in_tick: 0,
            more_ready: false,
        }
    }

    /// Records that `count` deliveries were taken at `now`, and whether more may be ready.
    ///
    /// The first chunk after a wait is the first of its tick. If it reaches the threshold alone, the next wait
    /// begins at once.
    pub(super) fn record_received(&mut self, count: usize, more_ready: bool, now: Instant) {
        let tick = self.clock.current_tick(now);
        if tick > self.current_tick {
            (self.current_tick, self.received_in_tick) = (tick, 0);
        }
        self.received_in_tick += count;
        self.more_ready = more_ready;
    }

    /// When to take the next deliveries; `None` means immediately.
    pub(super) fn wait_until(&self) -> Option<Instant> {
        let under_load = self.received_in_tick >= self.clock.threshold;
        (self.enabled && !self.more_ready && under_load).then(|| self.current_tick + self.clock.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_micros(100);

    fn coalescer(prefetch: u16) -> (DeliveryCoalescer, Instant) {
        let clock = TickClock::new(1);
        (DeliveryCoalescer::new(prefetch, clock), clock.start + TICK)
    }

    #[test]
    fn below_the_threshold_deliveries_are_taken_immediately() {
        let (mut coalescer, mut now) = coalescer(1000);
        let below = coalescer.clock.threshold - 1;
        for _ in 0..100 {
            coalescer.record_received(below, false, now);
            assert_eq!(coalescer.wait_until(), None);
            now += TICK;
        }
    }

    #[test]
    fn above_the_threshold_deliveries_wait_for_each_next_tick() {
        let (mut coalescer, tick) = coalescer(1000);
        let threshold = coalescer.clock.threshold;
        for nth in 0..threshold {
            assert_eq!(coalescer.wait_until(), None, "{nth} deliveries are below the threshold");
            coalescer.record_received(1, false, tick + TENTH * u32::try_from(nth).unwrap());
        }
        assert_eq!(coalescer.wait_until(), Some(tick + TICK));
        coalescer.record_received(40, false, tick + TICK + TENTH);
        assert_eq!(coalescer.wait_until(), Some(tick + TICK * 2), "a late wake-up does not shift the ticks");
        coalescer.record_received(threshold - 1, false, tick + TICK * 2);
        assert_eq!(coalescer.wait_until(), None, "below the threshold again");
    }

    #[test]
    fn deliveries_that_are_ready_are_taken_before_waiting() {
        let (mut coalescer, now) = coalescer(1000);
        coalescer.record_received(64, true, now);
        assert_eq!(coalescer.wait_until(), None);
        coalescer.record_received(1, false, now);
        assert_eq!(coalescer.wait_until(), Some(now + TICK));
    }

    #[test]
    fn queues_of_a_lane_share_the_ticks_and_the_threshold() {
        let (one, four) = (TickClock::new(1), TickClock::new(4));
        let thresholds = [one, four, TickClock::new(0), TickClock::new(64)].map(|clock| clock.threshold);
        assert_eq!(thresholds, [16, 16, 16, 2]);
        let now = four.start + TENTH;
        for queue in 0..4 {
            let mut coalescer = DeliveryCoalescer::new(250, four);
            coalescer.record_received(four.threshold, false, now + TENTH * queue);
            assert_eq!(coalescer.wait_until(), Some(four.next_tick(now)));
        }
        assert_eq!(four.next_tick(now), four.start + SHARDED_TICK);
        assert_eq!(four.next_tick(four.next_tick(now)), four.start + SHARDED_TICK * 2);
    }

    #[test]
    fn a_small_prefetch_disables_coalescing() {
        let (mut coalescer, now) = coalescer(MIN_PREFETCH - 1);
        coalescer.record_received(100, false, now);
        assert_eq!(coalescer.wait_until(), None);
    }
}
