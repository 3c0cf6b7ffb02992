//! Asks the whole fleet for its state once.

use std::time::{Duration, SystemTime};

use garenne_common::exit::{Exit, Failure};
use garenne_protocol::task::epoch_ms;
use tokio::time::{Instant, timeout_at};

use super::{lifecycle::running_workers, listener::HeartbeatListener, roster::Roster};
use crate::operator::Operator;

/// Time limit for the first answer if no worker is on record.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause after which the answers of a large fleet are complete.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the workers on record.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Asks every worker for a heartbeat and waits until all workers on record have answered, one second at most.
/// With `listen`, it waits that long instead. Gateways do not answer; they appear if they send a heartbeat in
/// this time. Returns the processes that answered, the workers on record that did not, and the time of the poll.
///
/// # Errors
/// One line and an exit code.
pub async fn poll_fleet(operator: &Operator, listen: Option<Duration>) -> Result<(Roster, i64), Failure> {
    let now = || epoch_ms(SystemTime::now());
    let mut listener = HeartbeatListener::open(operator).await?;
    listener.request().await.map_err(|error| operator.broker.explain(&error))?;
    let started = Instant::now();
    let expected = match running_workers(&listener.connection, &operator.names.lifecycle()).await {
        Ok(expected) => expected,
        Err(failure) => {
            tracing::debug!(%failure, "cannot read the lifecycle stream");
            Default::default()
        }
    };
    let mut roster = Roster::new(now());
    let until = started + listen.unwrap_or(TIMEOUT);
    let mut pause = started + FIRST_ANSWER_TIMEOUT;
    loop {
        let complete =
            expected.iter().all(|(worker, (incarnation, _))| roster.has_heard(worker, incarnation));
        // Workers whose start record has expired may still answer.
        let deadline = if complete && listen.is_none() { pause.min(until) } else { until };
        match timeout_at(deadline, listener.next()).await {
            Ok(Ok(heartbeat)) => {
                // Regular heartbeats must not extend the pause; only the first one of a process does.
                if !roster.has_heard(&heartbeat.id, &heartbeat.incarnation) {
                    pause = pause.max(Instant::now() + PAUSE);
                }
                roster.record(heartbeat, now());
            }
            Ok(Err(error)) => return Err(Failure::new(Exit::BrokerUnavailable, error)),
            Err(_) => break,
        }
    }
    let at = now();
    for worker in expected.keys() {
        roster.expect(worker, at);
    }
    Operator::leave(listener.connection).await;
    Ok((roster, at))
}
