//! One look at the whole fleet: everybody is asked, and those who should be there and do not answer are
//! named.

use std::time::{Duration, SystemTime};

use garenne_common::exit::Failure;
use garenne_protocol::task::epoch_ms;
use tokio::time::{Instant, timeout_at};

use super::{ear::Ear, lives, roster::Roster};
use crate::operator::Operator;

/// Answers of a large fleet come in a row; a pause this long is their end.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the first answer may take.
const FIRST: Duration = Duration::from_millis(100);

/// How long those who should be there may take.
const ANSWERS: Duration = Duration::from_secs(1);

/// Who answered, and who did not.
pub struct Muster {
    /// Everybody.
    pub roster: Roster,
    /// When it was taken, milliseconds since 1970.
    pub at: i64,
}

/// Asks every worker, and waits until those on record have answered, at most a second; or listens for as long
/// as it is told. Gateways do not hear the question; they are seen where their own next beat falls into that.
///
/// # Errors
/// One line and an exit code.
pub async fn muster(operator: &Operator, listen: Option<Duration>) -> Result<Muster, Failure> {
    let now = || epoch_ms(SystemTime::now());
    let mut ear = Ear::open(operator).await?;
    let lost = |error: lapin::Error| operator.broker.explain(&error);
    ear.ask().await.map_err(lost)?;
    let asked = Instant::now();
    let on_record = match lives::on_record(&ear.connection, &operator.names.lifecycle()).await {
        Ok(on_record) => on_record,
        Err(failure) => {
            tracing::debug!(%failure, "nobody is on record");
            Default::default()
        }
    };
    let mut roster = Roster::new(now());
    let until = asked + listen.unwrap_or(ANSWERS);
    let mut pause = asked + FIRST;
    loop {
        let complete = on_record.iter().all(|(worker, (life, _))| roster.has_heard(worker, life));
        // The last answers may be on their way from workers that are on no record any more.
        let deadline = if complete && listen.is_none() { pause.min(until) } else { until };
        match timeout_at(deadline, ear.next()).await {
            Ok(Ok(beat)) => {
                // In a large fleet somebody always beats: only a new face says that more may come.
                if !roster.has_heard(&beat.id, &beat.incarnation) {
                    pause = pause.max(Instant::now() + PAUSE);
                }
                roster.hear(beat, now());
            }
            Ok(Err(error)) => {
                return Err(Failure::new(garenne_common::exit::Exit::BrokerUnavailable, error));
            }
            Err(_) => break,
        }
    }
    let at = now();
    for worker in on_record.keys() {
        roster.miss(worker, at);
    }
    Operator::leave(ear.connection).await;
    Ok(Muster { roster, at })
}
