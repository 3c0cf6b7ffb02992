//! Decides whether one incarnation of a worker crashed, from the lifecycle log and its control queue.
//!
//! A worker that lost its connection looks like a crashed one for a while: in both cases the broker deletes its
//! exclusive queue and requeues its deliveries. A running worker tries at least once a second to declare the queue
//! again, and then writes another start record. So a missing queue shows a crash only if for [`RECONNECT_GRACE`]
//! neither the queue nor a record appears.

use std::time::Duration;

use tokio::time::Instant;

use super::lifecycle::LoggedState;

/// Time without a control queue after which its worker has crashed. A running worker tries to reconnect at least
/// once a second.
pub(super) const RECONNECT_GRACE: Duration = Duration::from_secs(10);
/// Time with a control queue after which its worker is alive. The broker deletes the queue of a dead connection
/// when it requeues the connection's deliveries, so the queue of a crashed worker does not last this long.
pub(super) const ALIVE_AFTER: Duration = Duration::from_secs(3);

/// Observes one incarnation until it is known whether it crashed.
#[derive(Debug)]
pub(super) struct CrashDetector {
    started: Instant,
    /// Whether the control queue existed when it was last looked up, and since when this was observed.
    queue: Option<(bool, Instant)>,
}

impl CrashDetector {
    pub(super) fn new(now: Instant) -> Self {
        Self { started: now, queue: None }
    }

    /// Takes the state in the log and whether the control queue exists, both as of `now`. [`None`] means that the
    /// log has no record, or that the broker did not answer.
    ///
    /// Returns whether the incarnation crashed, [`None`] if it is too early to tell. One that stopped cleanly or is
    /// unknown did not crash.
    pub(super) fn observe(
        &mut self,
        logged: Option<LoggedState>,
        queue_exists: Option<bool>,
        now: Instant,
    ) -> Option<bool> {
        let missing_before = match logged {
            None | Some(LoggedState::Stopped) => return Some(false),
            Some(LoggedState::Replaced) => return Some(true),
            Some(LoggedState::Running { last_seen }) if last_seen > self.started => {
                return Some(false);
            }
            Some(LoggedState::Running { .. }) => now,
            Some(LoggedState::QueueMissing { since }) => since,
        };
        let exists = queue_exists?;
        let since = match self.queue {
            Some((existed, since)) if existed == exists => since,
            _ if exists => now,
            _ => missing_before.min(now),
        };
        self.queue = Some((exists, since));
        let decided_after = if exists { ALIVE_AFTER } else { RECONNECT_GRACE };
        (now - since >= decided_after).then_some(!exists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRASHED: Option<bool> = Some(true);
    const NOT_CRASHED: Option<bool> = Some(false);
    const UNDECIDED: Option<bool> = None;
    const MS: Duration = Duration::from_millis(1);

    fn running(last_seen: Instant) -> Option<LoggedState> {
        Some(LoggedState::Running { last_seen })
    }

    #[test]
    fn a_clean_stop_a_replacement_or_a_later_record_decides_without_the_queue() {
        let now = Instant::now();
        for queue in [None, Some(false), Some(true)] {
            let status = |logged| CrashDetector::new(now).observe(logged, queue, now);
            assert_eq!(status(Some(LoggedState::Stopped)), NOT_CRASHED);
            assert_eq!(status(None), NOT_CRASHED, "no record, no crash");
            assert_eq!(status(Some(LoggedState::Replaced)), CRASHED);
            assert_eq!(status(running(now + MS)), NOT_CRASHED, "a record since the start of the observation");
            assert_eq!(status(running(now)), UNDECIDED, "a record from before it");
        }
    }

    #[test]
    fn a_missing_queue_shows_a_crash_only_after_the_reconnect_grace() {
        let now = Instant::now();
        let mut detector = CrashDetector::new(now);
        let record = running(now - RECONNECT_GRACE * 2);
        assert_eq!(detector.observe(record, Some(false), now), UNDECIDED);
        let nearly = now + RECONNECT_GRACE - MS;
        assert_eq!(detector.observe(record, Some(false), nearly), UNDECIDED);
        assert_eq!(detector.observe(record, Some(false), now + RECONNECT_GRACE), CRASHED);
    }

    #[test]
    fn a_queue_that_reappears_restarts_the_reconnect_grace() {
        let now = Instant::now();
        let mut detector = CrashDetector::new(now);
        let record = running(now);
        assert_eq!(detector.observe(record, Some(false), now), UNDECIDED);
        assert_eq!(detector.observe(record, Some(true), now + 5000 * MS), UNDECIDED);
        let again = now + 6000 * MS;
        assert_eq!(detector.observe(record, Some(false), again), UNDECIDED);
        let nearly = again + RECONNECT_GRACE - MS;
        assert_eq!(detector.observe(record, Some(false), nearly), UNDECIDED);
        assert_eq!(detector.observe(record, Some(false), again + RECONNECT_GRACE), CRASHED);
    }

    #[test]
    fn a_queue_that_stays_shows_a_running_worker() {
        let now = Instant::now();
        let mut detector = CrashDetector::new(now);
        let record = running(now);
        assert_eq!(detector.observe(record, Some(true), now), UNDECIDED);
        assert_eq!(detector.observe(record, Some(true), now + ALIVE_AFTER - MS), UNDECIDED);
        assert_eq!(detector.observe(record, Some(false), now + ALIVE_AFTER), UNDECIDED);
        let back = now + ALIVE_AFTER + MS;
        assert_eq!(detector.observe(record, Some(true), back), UNDECIDED, "counted from zero");
        assert_eq!(detector.observe(record, Some(true), back + ALIVE_AFTER), NOT_CRASHED);
    }

    #[test]
    fn the_status_is_undecided_while_the_broker_does_not_answer() {
        let now = Instant::now();
        let mut detector = CrashDetector::new(now);
        for hours in 0..3 {
            let later = now + 3600 * 1000 * hours * MS;
            assert_eq!(detector.observe(running(now), None, later), UNDECIDED);
        }
    }

    #[test]
    fn the_reconnect_grace_counts_from_the_logged_time_of_a_missing_queue() {
        let now = Instant::now();
        let status = |since| {
            CrashDetector::new(now).observe(Some(LoggedState::QueueMissing { since }), Some(false), now)
        };
        assert_eq!(status(now - RECONNECT_GRACE), CRASHED);
        assert_eq!(status(now - RECONNECT_GRACE + MS), UNDECIDED);
        assert_eq!(status(now + MS), UNDECIDED, "logged during the observation");
        let logged = Some(LoggedState::QueueMissing { since: now - RECONNECT_GRACE });
        assert_eq!(CrashDetector::new(now).observe(logged, Some(true), now), UNDECIDED);
    }
}
