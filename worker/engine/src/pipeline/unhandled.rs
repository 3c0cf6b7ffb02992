//! Tasks of kinds that this worker has no handler for.
//!
//! Several services may share a lane, each with kinds of its own. A kind lives while the lifecycle stream names a running
//! worker that has it. A task of a living kind is passed on: a copy goes to the end of the lane's queue at once, and the
//! broker delivers it to any of the lane's consumers. A task of another kind waits in the lane's retry queues, because
//! its service may be restarting, and becomes a dead letter after the setting `unknown_kind_wait`.

use std::{sync::Arc, time::Duration};

use garenne_common::{clock, random};
use garenne_protocol::{
    task::{DeadReason, Envelope, epoch_ms, span_ms},
    topology::{Delay, Ladder},
};
use humantime::format_duration;
use tokio::time::sleep;

use super::LanePipeline;
use crate::{fleet::KindWorkers, in_flight::InFlight};

/// The mean pause before a task is passed on again is half of this. It makes the order of copies random: if two workers
/// passed on two tasks in step, each could get its own copy back without end.
const PAUSE: Duration = Duration::from_millis(5);
/// How often the pause doubles: up to 640 ms.
const MOST_DOUBLINGS: u32 = 7;

/// The pause before a task is passed on that was passed on before. `chance` is a random number, uniform in `0.0..1.0`.
///
/// Each copy reaches one of the lane's consumers by chance. More returns than chance explains mean that the workers with
/// the handler take nothing, because they are busy or quiet. Then the pauses grow, so that copies do not circulate.
fn pause(passed_on: u32, workers: KindWorkers, chance: f64) -> Duration {
    if passed_on == 0 {
        return Duration::ZERO;
    }
    let usual = 4 * workers.lane_consumers.div_ceil(workers.in_lane.max(1));
    let doublings = passed_on.saturating_sub(u32::try_from(usual).unwrap_or(u32::MAX)).min(MOST_DOUBLINGS);
    PAUSE.mul_f64(chance) * 2_u32.pow(doublings)
}

/// Since when a task has been waiting for a handler, in milliseconds since 1970. [`None`] if it has waited for long
/// enough.
pub(super) fn waiting_since(task: &Envelope, wait: Duration, now: i64) -> Option<i64> {
    // A time in the future comes from another clock or is forged; it must not extend the wait.
    let since = task.unhandled.as_ref().and_then(|record| record.since).unwrap_or(now).min(now);
    (now.saturating_sub(since) < span_ms(wait)).then_some(since)
}

/// The time from `since` to `now`, both in milliseconds since 1970.
pub(super) fn waited(since: i64, now: i64) -> Duration {
    Duration::from_millis(now.saturating_sub(since).unsigned_abs())
}

/// The delay until a task that has waited for `waited` of `wait` is looked at again. It grows with the time that it has
/// waited, and is at least a tenth of `wait` at the end: with the default retry delays, a task gets ten copies in ten
/// minutes.
pub(super) fn next_delay(ladder: &Ladder, waited: Duration, wait: Duration) -> Delay {
    let left = wait.saturating_sub(waited);
    ladder.rung_below((3 * waited).min(left.max(wait / 10)))
}

impl LanePipeline {
    /// Settles a task that this worker has no handler for.
    pub(super) async fn settle_unhandled(self: Arc<Self>, task: InFlight) {
        let InFlight { delivery, envelope, .. } = &task;
        let kind = envelope.kind.as_str();
        if self.unless_aborted(delivery, self.member.look_for_kind(kind)).await.is_none() {
            return;
        }
        let workers = self.member.workers_of(kind, &self.lane);
        if workers.in_lane > 0 {
            let passed_on = envelope.unhandled.as_ref().map_or(0, |record| record.passed_on);
            let pause = sleep(pause(passed_on, workers, random::chance()));
            if self.unless_aborted(delivery, pause).await.is_some() {
                self.settler.pass_on(task, Arc::clone(&self.lane)).await;
            }
            return;
        }
        // Its property `type` names a kind of another lane, or its publisher wrote to this lane directly.
        let home = self.settler.routes.lanes.taking(kind).filter(|home| **home != *self.lane);
        if let Some(home) = home.filter(|home| self.member.workers_of(kind, home).in_lane > 0) {
            let home = home.into();
            return self.settler.pass_on(task, home).await;
        }
        let (now, wait) = (epoch_ms(clock::now()), self.settler.unknown_kind_wait);
        let since = match waiting_since(envelope, wait, now) {
            None if workers.anywhere == 0 => return self.dead_letter_unhandled(task).await,
            since => since.unwrap_or(now.saturating_sub(span_ms(wait))),
        };
        let delay = next_delay(&self.settler.ladder, waited(since, now), wait);
        self.settler.wait_for_handler(task, since, delay).await;
    }

    /// Dead-letters a task whose kind no running worker has.
    pub(super) async fn dead_letter_unhandled(&self, task: InFlight) {
        self.settler.end_wait(&task);
        let (kind, wait) = (task.envelope.kind.as_str(), self.settler.unknown_kind_wait);
        let error = match wait {
            Duration::ZERO => format!("no handler for kind {kind:?} on any worker"),
            wait => format!("no handler for kind {kind:?} on any worker for {}", format_duration(wait)),
        };
        self.dead_letter(task, DeadReason::UnknownKind, &error).await;
    }
}

#[cfg(test)]
mod tests;
