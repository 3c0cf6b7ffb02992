//! When deliveries are taken: at once while few come, once a moment while many do.
//!
//! To wake the thread that takes a delivery, and then one of the handlers', costs more than most tasks. Where
//! deliveries come by the thousand a second a moment brings company, and each waking serves all of them.

use std::time::Duration;

use tokio::time::Instant;

/// How long a delivery may wait for company, where its lane has one queue.
const MOMENT: Duration = Duration::from_millis(1);
/// The longest moment has so many of it.
const LONGEST: u32 = 4;
/// So many within a moment are many: 8,000 a second over all of a lane's queues. With fewer nothing waits.
const MANY: usize = 8;
/// With a smaller prefetch a moment's wait would leave the broker without credit, and this worker without work.
const LEAST_PREFETCH: u16 = 128;

/// The moment of a lane with so many queues: each has its part of what comes, and waits longer, so that as
/// many come together.
pub(super) fn moment(queues: usize) -> Duration {
    MOMENT * u32::try_from(queues).unwrap_or(LONGEST).clamp(1, LONGEST)
}

/// Knows how many came of late.
pub(super) struct Company {
    worthwhile: bool,
    moment: Duration,
    began: Instant,
    came: usize,
    /// More are at hand.
    more: bool,
}

impl Company {
    pub(super) fn new(prefetch: u16, moment: Duration) -> Self {
        Self { worthwhile: prefetch >= LEAST_PREFETCH, moment, began: Instant::now(), came: 0, more: false }
    }

    /// Notes that so many were taken, and whether `more` may be at hand. The first burst after a wait begins a
    /// moment, so where that alone brought many the next wait begins at once.
    pub(super) fn took(&mut self, count: usize, more: bool, now: Instant) {
        if now >= self.began + self.moment {
            (self.began, self.came) = (now, 0);
        }
        self.came += count;
        self.more = more;
    }

    /// Until when the next ones wait; not at all while few come.
    pub(super) fn wait(&self) -> Option<Instant> {
        (self.worthwhile && !self.more && self.came >= MANY).then(|| self.began + self.moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_micros(100);

    fn company(prefetch: u16) -> (Company, Instant) {
        let company = Company::new(prefetch, MOMENT);
        let now = company.began + MOMENT;
        (company, now)
    }

    #[test]
    fn few_wait_for_nobody() {
        let (mut company, mut now) = company(1000);
        for _ in 0..100 {
            company.took(MANY - 1, false, now);
            assert_eq!(company.wait(), None);
            now += MOMENT;
        }
    }

    #[test]
    fn many_wait_for_the_end_of_the_moment_and_go_on_waiting() {
        let (mut company, begun) = company(1000);
        for nth in 0..MANY {
            assert_eq!(company.wait(), None, "{nth} are few");
            company.took(1, false, begun + TENTH * u32::try_from(nth).unwrap());
        }
        assert_eq!(company.wait(), Some(begun + MOMENT));
        company.took(40, false, begun + MOMENT);
        assert_eq!(company.wait(), Some(begun + MOMENT * 2));
        company.took(MANY - 1, false, begun + MOMENT * 2);
        assert_eq!(company.wait(), None, "they have become few");
    }

    #[test]
    fn what_is_at_hand_is_taken_first() {
        let (mut company, now) = company(1000);
        company.took(64, true, now);
        assert_eq!(company.wait(), None);
        company.took(1, false, now);
        assert_eq!(company.wait(), Some(now + MOMENT));
    }

    #[test]
    fn several_queues_wait_longer_for_as_many() {
        assert_eq!([0, 1, 3, 4, 16].map(moment), [1, 1, 3, 4, 4].map(Duration::from_millis));
        let mut company = Company::new(250, moment(4));
        let now = company.began + MOMENT * 4;
        company.took(MANY, false, now);
        assert_eq!(company.wait(), Some(now + MOMENT * 4));
    }

    #[test]
    fn a_small_prefetch_has_no_credit_to_wait_with() {
        let (mut company, now) = company(LEAST_PREFETCH - 1);
        company.took(100, false, now);
        assert_eq!(company.wait(), None);
    }
}
