//! Asks the whole fleet for its state once.

use std::time::{Duration, SystemTime};

use garenne_common::exit::{Exit, Failure};
use garenne_operator::{operator::Operator, waits};
use garenne_protocol::task::epoch_ms;
use tokio::time::{Instant, timeout_at};

use super::{listener::HeartbeatListener, roster::Roster};

/// Time limit for the first answer if no worker is on record.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause after which the answers of a large fleet are complete.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the workers on record.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Asks every worker for a heartbeat and waits until all workers on record have answered, one second at most.
/// With `listen`, it waits that long instead. Gateways and bridges do not answer; they appear if they send a heartbeat in
/// this time. Returns the processes that answered and the workers on record that did not.
///
/// While an alarm of the broker blocks publishers, no worker can answer.
///
/// # Errors
/// One line and an exit code.
pub async fn poll_fleet(operator: &Operator, listen: Option<Duration>) -> Result<Roster, Failure> {
    let (roster, alarm) = poll_and_alarm(operator, listen).await?;
    match alarm {
        None => Ok(roster),
        Some(alarm) => {
            let problem =
                format!("an alarm of the broker blocks publishers ({alarm}), so no worker can answer");
            Err(Failure::new(Exit::BrokerUnavailable, problem))
        }
    }
}

/// As [`poll_fleet`], with what the broker lacks while an alarm blocks publishers.
///
/// # Errors
/// Those of [`poll_fleet`], besides the alarm.
pub async fn poll_and_alarm(
    operator: &Operator,
    listen: Option<Duration>,
) -> Result<(Roster, Option<String>), Failure> {
    let now = || epoch_ms(SystemTime::now());
    let mut listener = HeartbeatListener::open(operator).await?;
    let mut roster = Roster::new(now());
    let until = listener.requested + listen.unwrap_or(TIMEOUT);
    waits::pause_until(until);
    let mut pause = listener.requested + FIRST_ANSWER_TIMEOUT;
    loop {
        let complete =
            listener.expected.iter().all(|(worker, incarnation)| roster.has_heard(worker, incarnation));
        // Workers whose start record has expired may still answer.
        let deadline = if complete && listen.is_none() { pause.min(until) } else { until };
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
    for worker in listener.expected.keys() {
        roster.expect(worker, at);
    }
    Operator::leave(listener.connection).await;
    Ok((roster, listener.alarm))
}
