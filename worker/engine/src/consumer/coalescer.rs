//! When deliveries are taken: at once while few come, once a tick of a clock while many do.
//!
//! To wake the thread that takes a delivery, and then one of the handlers', costs more than most tasks. Where
//! deliveries come by the thousand a second a tick brings company, and each waking serves all of them.

use std::time::Duration;

use tokio::time::Instant;

/// How long a delivery may wait for company, where its lane has one queue.
const TICK: Duration = Duration::from_millis(2);
/// The same where it has several, each of which has its part of what comes: fewer acks with more in each are worth
/// most where a queue's every log entry goes to other nodes.
const TICK_OF_SEVERAL: Duration = Duration::from_millis(8);
/// So many in a millisecond are many, over all of a lane's queues: 8,000 a second. With fewer nothing waits.
const MANY: u128 = 8;
/// With a smaller prefetch a tick's wait would leave the broker without credit, and this worker without work.
const LEAST_PREFETCH: u16 = 128;

/// What a lane's queues look at while they wait: all of them at the same one, so that one waking serves them all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickClock {
    start: Instant,
    tick: Duration,
    /// So many within a tick are worth waiting for more.
    many: usize,
}

impl TickClock {
    /// The clock of a lane with so many queues.
    pub(super) fn new(queues: usize) -> Self {
        let tick = if queues > 1 { TICK_OF_SEVERAL } else { TICK };
        let many = MANY * tick.as_millis() / queues.max(1) as u128;
        Self { start: Instant::now(), tick, many: usize::try_from(many).unwrap_or(usize::MAX).max(2) }
    }

    fn last(&self, now: Instant) -> Instant {
        let past = now.duration_since(self.start).as_nanos() % self.tick.as_nanos();
        now - Duration::from_nanos(u64::try_from(past).expect("less than a tick"))
    }

    /// The first tick after `now`.
    pub(super) fn next(&self, now: Instant) -> Instant {
        self.last(now) + self.tick
    }
}

/// Knows how many came of late.
pub(super) struct DeliveryCoalescer {
    clock: TickClock,
    worthwhile: bool,
    /// The tick that what came is counted from.
    tick: Instant,
    came: usize,
    /// More are at hand.
    more: bool,
}

impl DeliveryCoalescer {
    pub(super) fn new(prefetch: u16, clock: TickClock) -> Self {
        Self { clock, worthwhile: prefetch >= LEAST_PREFETCH, tick: clock.start, came: 0, more: false }
    }

    /// Notes that so many were taken, and whether `more` may be at hand. The burst after a wait is the first
    /// since a tick, so where that alone brought many the next wait begins at once.
    pub(super) fn took(&mut self, count: usize, more: bool, now: Instant) {
        let tick = self.clock.last(now);
        if tick > self.tick {
            (self.tick, self.came) = (tick, 0);
        }
        self.came += count;
        self.more = more;
    }

    /// Until when the next ones wait; not at all while few come.
    pub(super) fn wait(&self) -> Option<Instant> {
        let many = self.came >= self.clock.many;
        (self.worthwhile && !self.more && many).then(|| self.tick + self.clock.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_micros(100);

    fn company(prefetch: u16) -> (DeliveryCoalescer, Instant) {
        let clock = TickClock::new(1);
        (DeliveryCoalescer::new(prefetch, clock), clock.start + TICK)
    }

    #[test]
    fn few_wait_for_nobody() {
        let (mut company, mut now) = company(1000);
        let few = company.clock.many - 1;
        for _ in 0..100 {
            company.took(few, false, now);
            assert_eq!(company.wait(), None);
            now += TICK;
        }
    }

    #[test]
    fn many_wait_for_the_next_tick_and_go_on_waiting() {
        let (mut company, tick) = company(1000);
        let many = company.clock.many;
        for nth in 0..many {
            assert_eq!(company.wait(), None, "{nth} are few");
            company.took(1, false, tick + TENTH * u32::try_from(nth).unwrap());
        }
        assert_eq!(company.wait(), Some(tick + TICK));
        company.took(40, false, tick + TICK + TENTH);
        assert_eq!(company.wait(), Some(tick + TICK * 2), "however late it was");
        company.took(many - 1, false, tick + TICK * 2);
        assert_eq!(company.wait(), None, "they have become few");
    }

    #[test]
    fn what_is_at_hand_is_taken_first() {
        let (mut company, now) = company(1000);
        company.took(64, true, now);
        assert_eq!(company.wait(), None);
        company.took(1, false, now);
        assert_eq!(company.wait(), Some(now + TICK));
    }

    #[test]
    fn several_queues_look_at_the_same_clock_and_share_what_many_are() {
        let (one, four) = (TickClock::new(1), TickClock::new(4));
        assert_eq!((one.many, four.many, TickClock::new(0).many, TickClock::new(64).many), (16, 16, 16, 2));
        let now = four.start + TENTH;
        for queue in 0..4 {
            let mut company = DeliveryCoalescer::new(250, four);
            company.took(four.many, false, now + TENTH * queue);
            assert_eq!(company.wait(), Some(four.next(now)));
        }
        assert_eq!(four.next(now), four.start + TICK_OF_SEVERAL);
        assert_eq!(four.next(four.next(now)), four.start + TICK_OF_SEVERAL * 2);
    }

    #[test]
    fn a_small_prefetch_has_no_credit_to_wait_with() {
        let (mut company, now) = company(LEAST_PREFETCH - 1);
        company.took(100, false, now);
        assert_eq!(company.wait(), None);
    }
}
