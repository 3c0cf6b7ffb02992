//! Decides whether one incarnation of a worker crashed, from the lifecycle log and its control queue.
//!
//! A worker that lost its connection looks like a crashed one for a while: the broker deletes its
//! exclusive queue and requeues its deliveries in both cases. A living worker declares the queue again,
//! at most a second between two attempts, and writes another start record. So a missing queue is a crash
//! only after [`RECONNECT_GRACE`] without either.

use std::time::Duration;

use tokio::time::Instant;

/// How long a control queue must be missing. Workers try to reconnect at least once a second.
pub(super) const RECONNECT_GRACE: Duration = Duration::from_secs(10);
/// How long a control queue must be there. The broker deletes the queue of a dead connection when it
/// requeues the connection's deliveries; a queue that outlasts that belongs to a living worker.
pub(super) const ALIVE_AFTER: Duration = Duration::from_secs(3);

/// What the lifecycle log says of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// Nothing, or nothing any more.
    Nothing,
    /// It ended cleanly.
    Ended,
    /// It started, or was heard of again, at this time of this worker's clock.
    Open {
        /// When its latest record was read.
        heard: Instant,
    },
    /// Its queue was found missing, and it has not been heard of since.
    Missing {
        /// When that was read.
        since: Instant,
    },
    /// A later incarnation of the same worker holds the queue, which two cannot do.
    Replaced,
}

/// What became of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It ended without a clean end.
    Crashed,
    /// It is alive, ended cleanly, or nothing is known of it.
    NotCrashed,
    /// That cannot be known yet.
    Undecided,
}

/// One incarnation under observation.
#[derive(Debug)]
pub(super) struct Observation {
    begun: Instant,
    missing_since: Option<Instant>,
    present_since: Option<Instant>,
}

impl Observation {
    pub(super) fn begin(now: Instant) -> Self {
        Self { begun: now, missing_since: None, present_since: None }
    }

    /// Takes what the log says and whether the queue exists, as of `now`.
    pub(super) fn observe(&mut self, recorded: Recorded, queue: Option<bool>, now: Instant) -> Finding {
        let missing_before = match recorded {
            Recorded::Nothing | Recorded::Ended => return Finding::NotCrashed,
            Recorded::Replaced => return Finding::Crashed,
            Recorded::Open { heard } if heard > self.begun => return Finding::NotCrashed,
            Recorded::Open { .. } => now,
            Recorded::Missing { since } => since,
        };
        match queue {
            Some(true) => {
                self.missing_since = None;
                let since = *self.present_since.get_or_insert(now);
                if now - since >= ALIVE_AFTER { Finding::NotCrashed } else { Finding::Undecided }
            }
            Some(false) => {
                self.present_since = None;
                let since = *self.missing_since.get_or_insert(missing_before.min(now));
                if now - since >= RECONNECT_GRACE { Finding::Crashed } else { Finding::Undecided }
            }
            None => Finding::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn open(heard: Instant) -> Recorded {
        Recorded::Open { heard }
    }

    #[test]
    fn the_log_alone_decides_where_it_can() {
        let now = Instant::now();
        for queue in [None, Some(false), Some(true)] {
            let finding = |recorded| Observation::begin(now).observe(recorded, queue, now);
            assert_eq!(finding(Recorded::Ended), Finding::NotCrashed);
            assert_eq!(finding(Recorded::Nothing), Finding::NotCrashed, "no evidence condemns nothing");
            assert_eq!(finding(Recorded::Replaced), Finding::Crashed);
            assert_eq!(finding(open(now + MS)), Finding::NotCrashed, "it has spoken since");
            assert_eq!(finding(open(now)), Finding::Undecided, "what was read before says nothing");
        }
    }

    #[test]
    fn a_missing_queue_is_a_crash_only_after_the_time_a_reconnect_may_take() {
        let now = Instant::now();
        let mut observation = Observation::begin(now);
        let record = open(now - RECONNECT_GRACE * 2);
        assert_eq!(observation.observe(record, Some(false), now), Finding::Undecided);
        let nearly = now + RECONNECT_GRACE - MS;
        assert_eq!(observation.observe(record, Some(false), nearly), Finding::Undecided);
        assert_eq!(observation.observe(record, Some(false), now + RECONNECT_GRACE), Finding::Crashed);
    }

    #[test]
    fn a_queue_that_was_there_in_between_starts_the_time_anew() {
        let now = Instant::now();
        let mut observation = Observation::begin(now);
        let record = open(now);
        assert_eq!(observation.observe(record, Some(false), now), Finding::Undecided);
        assert_eq!(observation.observe(record, Some(true), now + 5000 * MS), Finding::Undecided);
        let again = now + 6000 * MS;
        assert_eq!(observation.observe(record, Some(false), again), Finding::Undecided);
        let nearly = again + RECONNECT_GRACE - MS;
        assert_eq!(observation.observe(record, Some(false), nearly), Finding::Undecided);
        assert_eq!(observation.observe(record, Some(false), again + RECONNECT_GRACE), Finding::Crashed);
    }

    #[test]
    fn a_queue_that_stays_belongs_to_a_living_worker() {
        let now = Instant::now();
        let mut observation = Observation::begin(now);
        let record = open(now);
        assert_eq!(observation.observe(record, Some(true), now), Finding::Undecided);
        assert_eq!(observation.observe(record, Some(true), now + ALIVE_AFTER - MS), Finding::Undecided);
        assert_eq!(observation.observe(record, Some(false), now + ALIVE_AFTER), Finding::Undecided);
        let back = now + ALIVE_AFTER + MS;
        assert_eq!(observation.observe(record, Some(true), back), Finding::Undecided, "counted anew");
        assert_eq!(observation.observe(record, Some(true), back + ALIVE_AFTER), Finding::NotCrashed);
    }

    #[test]
    fn nothing_is_decided_while_the_broker_cannot_be_asked() {
        let now = Instant::now();
        let mut observation = Observation::begin(now);
        for hours in 0..3 {
            let later = now + 3600 * 1000 * hours * MS;
            assert_eq!(observation.observe(open(now), None, later), Finding::Undecided);
        }
    }

    #[test]
    fn a_crash_that_was_noticed_before_is_not_waited_for_again() {
        let now = Instant::now();
        let finding = |since| Observation::begin(now).observe(Recorded::Missing { since }, Some(false), now);
        assert_eq!(finding(now - RECONNECT_GRACE), Finding::Crashed);
        assert_eq!(finding(now - RECONNECT_GRACE + MS), Finding::Undecided);
        assert_eq!(finding(now + MS), Finding::Undecided, "noticed while it was looked");
        let returned = Recorded::Missing { since: now - RECONNECT_GRACE };
        assert_eq!(Observation::begin(now).observe(returned, Some(true), now), Finding::Undecided);
    }
}
