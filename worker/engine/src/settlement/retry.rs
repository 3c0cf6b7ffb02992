//! Retries and deferrals: a copy waits in a delay queue of the lane's retry ladder.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_amqp::Target;
use garenne_common::shutdown::Settlement;
use garenne_protocol::{
    task::{Copied, DeadReason, Envelope, epoch_ms, header},
    topology::Delay,
};
use rand::Rng;

use super::{InFlight, Settler, copies::copy_of};
use crate::{handler::RetryPolicy, spans::AttemptSpan};

/// The longest wait of a retry or a deferral. Stop directives are kept as long.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(Envelope::MAX_MS.unsigned_abs());

impl Settler {
    /// Spends an attempt: publishes a copy for the next one, or a dead letter if this was the last.
    ///
    /// The copy waits for `after` if the handler asked for that, otherwise for the back-off of `policy`. Since
    /// the task ran without crashing its worker, the copy leaves the quarantine if it was there.
    pub(super) fn retry(
        self: &Arc<Self>,
        task: InFlight,
        policy: &RetryPolicy,
        error: String,
        after: Option<Duration>,
    ) {
        let spent = task.envelope.attempt + 1;
        let max = policy.attempts.unwrap_or(self.max_attempts).max(1);
        if spent >= max {
            let error = format!("{error} (attempt {spent} of {max})");
            return self.dead_letter(task, DeadReason::AttemptsExhausted, error);
        }
        task.span.end(Settlement::Retried, Some(&error));
        let (id, kind, trace_id) = (&task.envelope.id, &task.envelope.kind, task.envelope.trace_id());
        tracing::info!(task = %id, %kind, trace_id, attempt = spent, error, "attempt failed, will be retried");
        let now = SystemTime::now();
        let copied = copy_of(&task).attempt(spent).first_seen(now);
        let (rung, copied) = match after {
            Some(after) => {
                let after = after.min(MAX_WAIT);
                (self.ladder.rung_below(after), copied.not_before(epoch_ms(now + after)))
            }
            None => {
                let wait = policy.backoff(spent);
                (self.ladder.rung_near(wait, rand::rng().random()), copied.without(header::NOT_BEFORE))
            }
        };
        self.publish_to_ladder(task, rung, copied);
    }

    /// Publishes a copy that is due after `wait`, without spending an attempt.
    ///
    /// The wait is at most [`MAX_WAIT`]. The copy leaves the quarantine if the task was there.
    pub(crate) fn defer(self: &Arc<Self>, task: InFlight, wait: Duration) {
        task.span.end(Settlement::Retried, None);
        let wait = wait.min(MAX_WAIT);
        let copied = copy_of(&task).not_before(epoch_ms(SystemTime::now() + wait));
        self.publish_to_ladder(task, self.ladder.rung_below(wait), copied);
    }

    /// Publishes a copy to a delay queue of the task's lane, then takes the original off its queue.
    ///
    /// A task of the quarantine that cannot be retried becomes a dead letter: its lane is not defined any more, and
    /// no other lane takes its kind. The span of its attempt, if any, has ended already.
    fn publish_to_ladder(self: &Arc<Self>, task: InFlight, rung: Delay, copied: Copied) {
        let Some(lane) = self.retry_lane(&task) else {
            let (recorded, kind) = (task.envelope.lane.as_deref().unwrap_or(""), task.envelope.kind.as_str());
            let error =
                format!("header garenne-lane names no lane ({recorded:?}), and none takes kind {kind:?}");
            let task = InFlight { span: AttemptSpan::default(), ..task };
            return self.dead_letter(task, DeadReason::Malformed, error);
        };
        let queues = self.lane_queues(&lane);
        let copied = copied.unmarked().without(header::LANE);
        // A sharded lane distributes by key.
        let copied = if queues.is_sharded() { copied.keyed(task.envelope.id.as_str()) } else { copied };
        let target = Target::queue(queues.rung(rung));
        self.publish_copy(lane, task.delivery, copied, target, Settlement::Retried);
    }
}
