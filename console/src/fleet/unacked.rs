//! The unacknowledged messages of a lane: the count that is exact, or the one that is closest to it.
//!
//! Workers know at once what they hold; the broker's statistics lag by seconds. So the workers' sum is exact if all of
//! them are heard and nothing else consumes the queue. Otherwise the broker's count is better, if there is one.

use garenne_operator::queues::{FigureSource, QueueStatus, Source};
use garenne_protocol::heartbeat::Program;

use super::roster::{Roster, State};

/// Replaces the broker's count of a lane's unacknowledged messages by that of the workers if that is exact, or if there
/// is no other. Returns whether the count is exact, or the broker's.
pub fn count_unacked(roster: &Roster, lane: &str, queue: &mut QueueStatus, now: i64) -> bool {
    let (mut held, mut workers, mut age_ms, mut complete) = (0, 0, 0, true);
    for member in roster.members(Program::Worker, now) {
        if !member.state.runs() {
            continue;
        }
        let beat = member.process.heartbeat();
        // A worker that was never heard may hold messages of any lane.
        complete &= beat.is_some();
        let Some(beat) = beat.and_then(|beat| beat.lanes.get(lane)) else { continue };
        complete &= member.state != State::Silent;
        held += beat.held;
        workers += 1;
        age_ms = age_ms.max(member.heard_ms_ago.unwrap_or(0));
    }
    // Another program consumes the queue.
    complete &= queue.consumers <= workers;
    if complete || queue.unacked.is_none() {
        queue.unacked = Some(held);
        queue.unacked_from = Some(FigureSource { source: Source::Heartbeats, age_ms });
    }
    complete || queue.unacked_from.is_some_and(|from| from.source == Source::Management)
}

#[cfg(test)]
mod tests {
    use garenne_protocol::heartbeat::Heartbeat;

    use super::*;

    fn roster(heard_at: &[i64]) -> Roster {
        let mut roster = Roster::new(0);
        for (n, at) in heard_at.iter().enumerate() {
            let beat: Heartbeat = serde_json::from_value(serde_json::json!({
                "program": "worker", "id": format!("w{n}"), "incarnation": "i", "started_at": 0, "at": at,
                "every_ms": 1_000, "stance": "open", "lanes": {"fast": {"held": 10}},
            }))
            .unwrap();
            roster.record(beat, *at);
        }
        roster
    }

    fn counted(roster: &Roster, lane: &str, broker: Option<u64>, consumers: u64) -> (u64, Source, u64, bool) {
        let unacked_from = broker.map(|_| FigureSource { source: Source::Management, age_ms: 5_000 });
        let mut queue = QueueStatus { unacked: broker, unacked_from, consumers, ..QueueStatus::default() };
        let certain = count_unacked(roster, lane, &mut queue, 10_000);
        let from = queue.unacked_from.unwrap();
        (queue.unacked.unwrap(), from.source, from.age_ms, certain)
    }

    #[test]
    fn the_workers_count_wins_if_all_are_heard() {
        let all = roster(&[9_900, 9_950]);
        assert_eq!(counted(&all, "fast", Some(99), 2), (20, Source::Heartbeats, 100, true));
        assert_eq!(counted(&all, "fast", None, 2), (20, Source::Heartbeats, 100, true));
        assert_eq!(counted(&all, "slow", Some(0), 0), (0, Source::Heartbeats, 0, true));
    }

    #[test]
    fn the_brokers_count_wins_if_a_worker_is_silent_or_another_program_consumes() {
        let mut silent = roster(&[9_900, 1_000]);
        assert_eq!(counted(&silent, "fast", Some(99), 2), (99, Source::Management, 5_000, true));
        assert_eq!(counted(&silent, "fast", None, 2), (20, Source::Heartbeats, 9_000, false));
        assert_eq!(counted(&roster(&[9_900]), "fast", Some(99), 2).1, Source::Management);
        silent = roster(&[9_900]);
        silent.expect("never-heard", 10_000);
        assert_eq!(counted(&silent, "fast", Some(99), 1).1, Source::Management);
        assert!(!counted(&silent, "fast", None, 1).3);
    }
}
