//! One attempt at a task, and what its end means.
//!
//! [`Attempt::execute`] runs in the lane's pool. It checks whether the task may still start, decodes the payload,
//! and calls the handler. The pool reports how the attempt ended, and [`AttemptEnd::of`] derives the task's
//! [`Outcome`] from that, which `pipeline::life` acts on.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use garenne_common::{clock, telemetry::metrics::TaskOutcome};
use garenne_pool::{self as pool, Cause, Ending, Spec};
use garenne_protocol::task::{DeadReason, Envelope};
use tokio::time::Instant;

use crate::{
    consumer::{ChannelGeneration, MessageHead},
    fleet::DirectiveEffect,
    handler::{ErrorAction, Helpers, Output, Sharing, Task, TaskContext, TaskError, WorkerContext},
    panics,
    registry::RegistryEntry,
    spans::AttemptSpan,
};

/// An attempt at one task: a message of its own, or a record of a batch.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) entry: Arc<RegistryEntry>,
    pub(crate) envelope: Arc<Envelope>,
    /// The lane whose pause keeps the attempt from starting. [`None`] for a record of a batch: if the batch has
    /// started, its records run.
    pub(crate) lane: Option<Arc<str>>,
    pub(crate) worker: Arc<WorkerContext>,
    pub(crate) sharing: Sharing,
    pub(crate) body: Bytes,
    /// The rest of the message, or of the batch that the record came in.
    pub(crate) head: Arc<MessageHead>,
    /// The channel that the task was delivered on.
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) span: AttemptSpan,
}

/// The result of an attempt that returned.
pub(crate) struct AttemptOutput {
    pub(crate) result: Result<Output, TaskError>,
    pub(crate) started_at: SystemTime,
    pub(crate) took: Duration,
}

impl Attempt {
    /// The time after which the task is cancelled; [`None`] for a short task. A publisher can shorten the kind's
    /// deadline, and can give one to a task of a short kind.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.entry.options.deadline.into_iter().chain(self.envelope.timeout).min()
    }

    /// Gives the attempt a team if the lane's idle workers may help with it.
    pub(crate) fn with_team(mut self) -> Self {
        let is_large = |helpers: Helpers| self.body.len() >= helpers.from_bytes;
        if self.deadline().is_some() && self.entry.options.helpers.is_some_and(is_large) {
            self.sharing = Sharing::Team(Arc::default());
        }
        self
    }

    /// How the pool runs the task, or the batch that it stands for.
    pub(crate) fn spec(&self, deadline: Option<Duration>) -> Spec {
        let mut spec = Spec::short(self.envelope.id.shared());
        if let Some(deadline) = deadline {
            spec = spec.deadline(deadline);
        }
        if self.entry.options.cpu_bound {
            spec = spec.on_threads();
        }
        if let (Some(helpers), Some(_)) = (self.entry.options.helpers, self.sharing.team()) {
            spec = spec.helped_by(helpers.max);
        }
        if let Some(group) = &self.envelope.group {
            spec = spec.group(group.as_str());
        }
        spec
    }

    /// Runs the handler, unless the task must not start any more.
    pub(crate) async fn execute(self, cx: pool::TaskContext) -> AttemptOutput {
        let (started_at, started) = (clock::now(), Instant::now());
        self.span.start();
        let result = match self.start_refusal(started_at) {
            Some(error) => Err(error),
            None => self.call_handler(cx).await,
        };
        AttemptOutput { result, started_at, took: started.elapsed() }
    }

    /// Why the task must not start, if something happened while it waited in the pool.
    fn start_refusal(&self, now: SystemTime) -> Option<TaskError> {
        if !self.generation.is_open() {
            // The broker has already requeued the message.
            return Some(TaskError::interrupted());
        }
        if self.envelope.expired(now) {
            return Some(TaskError::expired());
        }
        if !self.entry.options.is_ready() {
            return Some(TaskError::interrupted());
        }
        match self.effect_of_directives(now)? {
            DirectiveEffect::Stopped => Some(TaskError::stopped()),
            DirectiveEffect::LanePaused => Some(TaskError::interrupted()),
            DirectiveEffect::Deferred(wait) => Some(TaskError::snooze(wait)),
        }
    }

    fn effect_of_directives(&self, now: SystemTime) -> Option<DirectiveEffect> {
        self.worker.directives.effect_on(&self.envelope, self.lane.as_deref(), now)
    }

    /// Whether the task's lane, kind or group is paused.
    pub(crate) fn is_paused(&self, now: SystemTime) -> bool {
        let effect = self.effect_of_directives(now);
        matches!(effect, Some(DirectiveEffect::LanePaused | DirectiveEffect::Deferred(_)))
    }

    async fn call_handler(self, cx: pool::TaskContext) -> Result<Output, TaskError> {
        let (content_type, envelope) = (self.envelope.content_type, Arc::clone(&self.envelope));
        let Self { envelope: task, head, lane, worker, sharing, span, .. } = self;
        let context = TaskContext::new(task, head, lane, worker, sharing, span, cx);
        let call =
            async { self.entry.handler.call(Task::new(context.clone(), content_type, self.body)).await };
        let result = panics::RUNNING.scope(envelope, call).await;
        let follow_ups = context.take_follow_ups();
        result
            .map(|mut output| {
                output.follow_ups = follow_ups;
                output
            })
            .map_err(|error| self.entry.options.retry.classify_error(error))
    }
}

/// What becomes of a task after its attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The attempt succeeded: store the result and ack.
    Done { output: Output, started_at: SystemTime, took: Duration },
    /// The attempt failed and counts: retry, or dead-letter if it was the last one. The wait is `after`, or the
    /// back-off of the kind's retry policy.
    Retry { error: String, after: Option<Duration> },
    /// Dead-letter, whatever number of attempts is left.
    Dead { reason: DeadReason, error: String },
    /// Run it again after `wait`. No attempt is spent.
    Defer { wait: Duration },
    /// Return it to its queue. No attempt is spent.
    HandBack,
    /// The attempt ignores its cancellation and is still running at shutdown. The delivery stays unsettled until
    /// the connection closes, when the broker requeues it.
    Abandon,
}

/// The outcome of a task and how its attempt is counted in metrics.
#[derive(Debug)]
pub(crate) struct AttemptEnd {
    pub(crate) outcome: Outcome,
    /// [`None`] if the task did not start.
    pub(crate) counted_as: Option<TaskOutcome>,
    /// How long the attempt ran; [`None`] if it did not return.
    pub(crate) duration: Option<Duration>,
}

impl AttemptEnd {
    /// Derives the outcome from the way in which the pool ended the attempt.
    pub(crate) fn of(ending: Ending<AttemptOutput>) -> Self {
        let (outcome, counted_as, duration) = match ending {
            Ending::Finished { output: AttemptOutput { result, started_at, took }, cancelled_by } => {
                let (outcome, counted_as) = match result {
                    Ok(output) => (Outcome::Done { output, started_at, took }, TaskOutcome::Success),
                    Err(error) => Self::after_error(error, cancelled_by),
                };
                (outcome, Some(counted_as), Some(took))
            }
            Ending::Panicked { message } => {
                let error = format!("the handler panicked: {message}");
                (Outcome::Retry { error, after: None }, Some(TaskOutcome::Panic), None)
            }
            Ending::GaveUp { cause: Cause::Shutdown, stuck: true } => {
                (Outcome::Abandon, Some(TaskOutcome::Interrupted), None)
            }
            Ending::GaveUp { cause, .. } => {
                let (outcome, counted_as) = Self::after_cancellation(cause);
                (outcome, Some(counted_as), None)
            }
            Ending::NotStarted { cause } => (Self::after_cancellation(cause).0, None, None),
        };
        Self { outcome, counted_as, duration }
    }

    /// Counts the attempt in the metrics of its kind, if the task started.
    pub(crate) fn count(&self, span: &AttemptSpan, entry: &RegistryEntry) {
        let Some(counted_as) = self.counted_as else { return };
        span.set_outcome(counted_as);
        match self.duration {
            Some(duration) => entry.metrics.ended(counted_as, duration),
            None => entry.metrics.counted(counted_as),
        }
    }

    /// The end of a task that did not start.
    pub(crate) fn not_started(outcome: Outcome) -> Self {
        Self { outcome, counted_as: None, duration: None }
    }

    /// The outcome of an attempt that returned an error. `cancelled` is why it had been cancelled before, if it
    /// had.
    fn after_error(error: TaskError, cancelled: Option<Cause>) -> (Outcome, TaskOutcome) {
        let message = || error.message().to_owned();
        match (&error.action, cancelled) {
            (ErrorAction::Dead(DeadReason::Stopped), _) => Self::after_cancellation(Cause::Stopped),
            (ErrorAction::Dead(reason), _) => {
                (Outcome::Dead { reason: *reason, error: message() }, TaskOutcome::Rejected)
            }
            // An error after the cancellation is taken for its consequence.
            (_, Some(cause)) => Self::after_cancellation(cause),
            (ErrorAction::Retry { after }, None) => {
                (Outcome::Retry { error: message(), after: *after }, TaskOutcome::Error)
            }
            (ErrorAction::Snooze { wait }, None) => (Outcome::Defer { wait: *wait }, TaskOutcome::Snoozed),
            (ErrorAction::HandBack, None) => (Outcome::HandBack, TaskOutcome::Interrupted),
        }
    }

    /// The outcome of a task that was cancelled, before its start or while it ran.
    fn after_cancellation(cause: Cause) -> (Outcome, TaskOutcome) {
        match cause {
            Cause::Deadline => {
                let error = "the deadline passed".into();
                (Outcome::Retry { error, after: None }, TaskOutcome::Timeout)
            }
            Cause::Stopped => {
                let error = "stopped by an operator".into();
                (Outcome::Dead { reason: DeadReason::Stopped, error }, TaskOutcome::Stopped)
            }
            Cause::Shutdown => (Outcome::HandBack, TaskOutcome::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use garenne_protocol::task::{ContentType, Directive, Kind, NewTask, TaskId, epoch_ms};
    use serde::Deserialize;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        TaskOptions, Worker, WorkerConfig,
        consumer::Delivery,
        json_payload,
        pipeline::{TestEnv, lane_env, long_kind},
        testing::{TestOutcome, TestWorker},
    };

    #[derive(Deserialize)]
    struct Anything {}
    json_payload!(Anything, "any.thing");

    fn failed(error: TaskError, cancelled_by: Option<Cause>) -> Outcome {
        let output =
            AttemptOutput { result: Err(error), started_at: SystemTime::UNIX_EPOCH, took: Duration::ZERO };
        AttemptEnd::of(Ending::Finished { output, cancelled_by }).outcome
    }

    #[test]
    fn a_shutdown_spends_no_attempt_and_a_deadline_spends_one() {
        assert!(matches!(failed(TaskError::retry("io"), Some(Cause::Shutdown)), Outcome::HandBack));
        assert!(matches!(failed(TaskError::interrupted(), Some(Cause::Deadline)), Outcome::Retry { .. }));
        let stopped = failed(TaskError::interrupted(), Some(Cause::Stopped));
        assert!(matches!(stopped, Outcome::Dead { reason: DeadReason::Stopped, .. }));
    }

    #[test]
    fn only_a_task_that_is_stuck_at_shutdown_is_abandoned() {
        let gave_up = |cause, stuck| AttemptEnd::of(Ending::GaveUp { cause, stuck }).outcome;
        assert!(matches!(gave_up(Cause::Shutdown, true), Outcome::Abandon));
        assert!(matches!(gave_up(Cause::Shutdown, false), Outcome::HandBack));
        assert!(matches!(gave_up(Cause::Deadline, true), Outcome::Retry { .. }));
    }

    #[test]
    fn a_rejection_stays_a_rejection_after_a_cancellation() {
        let outcome = failed(TaskError::reject("no"), Some(Cause::Shutdown));
        assert!(matches!(outcome, Outcome::Dead { reason: DeadReason::Rejected, .. }));
    }

    #[test]
    fn each_error_maps_to_one_outcome_and_one_metric() {
        let end_of = |error, cause| {
            let output = AttemptOutput { result: Err(error), started_at: SystemTime::UNIX_EPOCH, took: LONG };
            AttemptEnd::of(Ending::Finished { output, cancelled_by: cause })
        };
        let wait = Duration::from_secs(7);
        let cases = [
            (
                end_of(TaskError::retry("io"), None),
                "Retry { error: \"io\", after: None }",
                TaskOutcome::Error,
            ),
            (
                end_of(TaskError::retry_after("busy", wait), None),
                "Retry { error: \"busy\", after: Some(7s) }",
                TaskOutcome::Error,
            ),
            (end_of(TaskError::snooze(wait), None), "Defer { wait: 7s }", TaskOutcome::Snoozed),
            (end_of(TaskError::interrupted(), None), "HandBack", TaskOutcome::Interrupted),
            (
                end_of(TaskError::invalid("no"), None),
                "Dead { reason: InvalidPayload, error: \"no\" }",
                TaskOutcome::Rejected,
            ),
            (
                end_of(TaskError::stopped(), Some(Cause::Shutdown)),
                "Dead { reason: Stopped, error: \"stopped by an operator\" }",
                TaskOutcome::Stopped,
            ),
            (
                end_of(TaskError::snooze(wait), Some(Cause::Deadline)),
                "Retry { error: \"the deadline passed\", after: None }",
                TaskOutcome::Timeout,
            ),
        ];
        for (end, outcome, counted_as) in cases {
            assert_eq!(
                (format!("{:?}", end.outcome), end.counted_as),
                (outcome.to_owned(), Some(counted_as))
            );
            assert_eq!(end.duration, Some(LONG));
        }
    }

    const LONG: Duration = Duration::from_secs(3);

    #[test]
    fn attempts_that_did_not_return_are_counted_without_a_duration() {
        let panicked = AttemptEnd::of(Ending::Panicked { message: "boom".into() });
        assert_eq!((panicked.counted_as, panicked.duration), (Some(TaskOutcome::Panic), None));
        let Outcome::Retry { error, after: None } = panicked.outcome else { panic!("it is retried") };
        assert_eq!(error, "the handler panicked: boom");
        let gave_up = |cause| AttemptEnd::of(Ending::GaveUp { cause, stuck: true });
        assert_eq!(gave_up(Cause::Shutdown).counted_as, Some(TaskOutcome::Interrupted));
        assert_eq!(gave_up(Cause::Deadline).counted_as, Some(TaskOutcome::Timeout));
        assert_eq!(gave_up(Cause::Stopped).counted_as, Some(TaskOutcome::Stopped));
        let not_started = AttemptEnd::of(Ending::NotStarted { cause: Cause::Shutdown });
        assert_eq!((not_started.counted_as, not_started.duration), (None, None));
        assert!(matches!(not_started.outcome, Outcome::HandBack));
    }

    #[test]
    fn a_success_carries_its_output_and_its_duration() {
        let output = Output::json(&serde_json::json!(7)).unwrap();
        let returned = AttemptOutput { result: Ok(output), started_at: SystemTime::UNIX_EPOCH, took: LONG };
        let end = AttemptEnd::of(Ending::Finished { output: returned, cancelled_by: Some(Cause::Shutdown) });
        assert_eq!((end.counted_as, end.duration), (Some(TaskOutcome::Success), Some(LONG)));
        let Outcome::Done { output, started_at, took } = end.outcome else { panic!("it succeeded") };
        assert_eq!((output.json.get(), started_at, took), ("7", SystemTime::UNIX_EPOCH, LONG));
    }

    /// An attempt at a task of the lane `fast`.
    fn attempt(env: &TestEnv, entry: &Arc<RegistryEntry>, envelope: Envelope) -> Attempt {
        let delivery = Delivery::mock(&env.test.generation, 1, b"{}");
        Attempt {
            entry: Arc::clone(entry),
            envelope: Arc::new(envelope),
            lane: None,
            worker: Arc::clone(&env.pipeline.worker),
            sharing: Sharing::Nothing,
            body: delivery.body.clone(),
            head: Arc::clone(&delivery.head),
            generation: delivery.generation(),
            span: AttemptSpan::default(),
        }
    }

    /// A worker's settings are checked with the deadlines of its kinds.
    #[tokio::test]
    async fn a_publisher_can_shorten_the_deadline_of_a_kind_and_not_extend_it() {
        let (env, long) = (lane_env().await, long_kind());
        let deadline = |entry: &Arc<RegistryEntry>, timeout: Option<Duration>| {
            attempt(&env, entry, Envelope { timeout, ..Envelope::clone(&env.test.envelope) }).deadline()
        };
        let (short, long) = (&env.test.entry, long.get("any.thing").unwrap());
        let of_kind = long.options.deadline.unwrap();
        assert_eq!(deadline(long, None), Some(of_kind));
        assert_eq!(deadline(long, Some(of_kind / 2)), Some(of_kind / 2));
        assert_eq!(deadline(long, Some(of_kind * 2)), Some(of_kind));
        assert_eq!((deadline(short, None), deadline(short, Some(of_kind))), (None, Some(of_kind)));
    }

    #[tokio::test]
    async fn a_task_does_not_start_if_its_channel_died_it_expired_or_its_handler_stopped_being_ready() {
        let ready = watch::Sender::new(Ok(()));
        let options = TaskOptions::short().ready_when(ready.subscribe());
        let handler = async |_: Anything| Ok::<_, TaskError>(());
        let builder = Worker::builder(WorkerConfig::default()).handle_with(handler, options);
        let registry = builder.build().unwrap().into_parts().0;
        let (env, now) = (lane_env().await, clock::now());
        let refusal = |expires_at: Option<i64>| {
            let entry = registry.get("any.thing").unwrap();
            let attempt =
                attempt(&env, entry, Envelope { expires_at, ..Envelope::clone(&env.test.envelope) });
            attempt.start_refusal(now).map(|error| error.action)
        };
        assert!(refusal(None).is_none() && refusal(Some(epoch_ms(now) + 1)).is_none());
        let expired = refusal(Some(epoch_ms(now)));
        assert!(matches!(expired, Some(ErrorAction::Dead(DeadReason::Expired))));
        ready.send(Err("the model is not loaded".to_owned())).unwrap();
        assert!(matches!(refusal(None), Some(ErrorAction::HandBack)));
        ready.send(Ok(())).unwrap();
        assert!(refusal(None).is_none());
        env.test.generation.end();
        assert!(matches!(refusal(None), Some(ErrorAction::HandBack)));
    }

    /// The directive came after the task was admitted, and too early for the pool to find it.
    #[tokio::test]
    async fn a_task_that_is_stopped_while_it_waits_in_the_pool_does_not_start() {
        let started = Arc::new(AtomicBool::new(false));
        let was_started = Arc::clone(&started);
        let builder = Worker::builder(WorkerConfig::default()).handle(move |_: Anything| {
            was_started.store(true, Ordering::Relaxed);
            async { Ok::<_, TaskError>(()) }
        });
        let worker = TestWorker::new(builder).unwrap();
        let mut task = NewTask::new(Kind::parse("any.thing").unwrap(), ContentType::Json, b"{}".to_vec());
        task.id = TaskId::parse("unwanted").unwrap();
        worker.directives().apply(&Directive::StopTask { task: "unwanted".into(), at: 0 });
        let outcome = worker.run_task(&task).await;
        assert!(matches!(outcome, TestOutcome::Dead { reason: DeadReason::Stopped, .. }), "{outcome:?}");
        assert!(!started.load(Ordering::Relaxed));
        task.id = TaskId::parse("wanted").unwrap();
        assert!(matches!(worker.run_task(&task).await, TestOutcome::Done(_)));
    }
}
