//! Asks the whole fleet for its state once.

use std::time::{Duration, SystemTime};

use garenne_common::exit::{Exit, Failure};
use garenne_operator::{operator::Operator, waits};
use garenne_protocol::task::epoch_ms;
use tokio::time::{Instant, timeout_at};

use super::{lifecycle::RecordedWorker, listener::HeartbeatListener, roster::Roster};

/// Time limit for the first answer if no worker is on record.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause after which the answers of a large fleet are complete.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the workers on record.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time to listen for the processes that cannot be asked.
const LONGEST_LISTEN: Duration = Duration::from_secs(5);
/// How late their heartbeats may arrive.
const LATENESS: Duration = Duration::from_millis(200);

/// Asks every worker for a heartbeat and waits until all workers on record have answered, one second at most. Returns the
/// processes that were heard and the workers on record that were not. Gateways and bridges cannot be asked.
///
/// While an alarm of the broker blocks publishers, no worker can answer.
pub async fn poll_workers(operator: &Operator) -> Result<Roster, Failure> {
    let (roster, alarm) = poll(operator, Duration::ZERO, TIMEOUT).await?;
    match alarm {
        None => Ok(roster),
        Some(alarm) => {
            let problem =
                format!("an alarm of the broker blocks publishers ({alarm}), so no worker can answer");
            Err(Failure::new(Exit::BrokerUnavailable, problem))
        }
    }
}

/// As [`poll_workers`], and listens for `listen`. Without it, for as long as each gateway and bridge needs to send a heartbeat by
/// itself. Also returns what the broker lacks while an alarm blocks publishers. An alarm is not an error here.
pub async fn poll_fleet(
    operator: &Operator,
    listen: Option<Duration>,
) -> Result<(Roster, Option<String>), Failure> {
    let (at_least, at_most) = match (listen, operator.settings.common.events.heartbeat) {
        (Some(listen), _) => (listen, listen),
        (None, Duration::ZERO) => (Duration::ZERO, TIMEOUT),
        // They are varied by a tenth.
        (None, interval) => ((interval * 11 / 10 + LATENESS).min(LONGEST_LISTEN), TIMEOUT),
    };
    poll(operator, at_least, at_most.max(at_least)).await
}

/// Listens `at_least` this long, and `at_most` this long for workers on record that do not answer.
async fn poll(
    operator: &Operator,
    at_least: Duration,
    at_most: Duration,
) -> Result<(Roster, Option<String>), Failure> {
    let now = || epoch_ms(SystemTime::now());
    let mut listener = HeartbeatListener::open(operator).await?;
    let mut roster = Roster::new(now());
    let until = listener.requested + at_most;
    waits::pause_until(until);
    let mut pause = listener.requested + FIRST_ANSWER_TIMEOUT.max(at_least);
    loop {
        let complete = listener.expected().all(|(worker, incarnation)| roster.has_heard(worker, incarnation));
        // Workers whose start record has expired may still answer.
        let deadline = if complete { pause.min(until) } else { until };
        match timeout_at(deadline, listener.next()).await {
            Ok(heartbeat) => {
                let Some(heartbeat) = heartbeat? else { continue };
                // Regular heartbeats must not extend the pause; only the first one of a process does.
                if !roster.has_heard(&heartbeat.id, &heartbeat.incarnation) {
                    pause = pause.max(Instant::now() + PAUSE);
                }
                roster.record(heartbeat, now());
            }
            Err(_) => break,
        }
    }
    let at = now();
    for (worker, _) in listener.expected() {
        roster.expect(worker, at);
    }
    for (worker, RecordedWorker { starts, .. }) in &listener.recorded {
        roster.add_recorded_starts(worker, starts, at);
    }
    Operator::leave(listener.connection).await;
    Ok((roster, listener.alarm))
}
