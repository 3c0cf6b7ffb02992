//! One attempt: decode, run, and what its end means for the task.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use garenne_common::telemetry::metrics::TaskOutcome;
use garenne_pool::{self as pool, Cause, Ending};
use garenne_protocol::task::{DeadReason, Envelope};

use crate::{
    consumer::ChannelGeneration,
    fleet::{DirectiveEffect, Directives},
    handler::{ErrorAction, Output, TaskContext, TaskError, WorkerContext},
    panics,
    registry::Entry,
    spans::AttemptSpan,
};

/// An attempt at a task that is a message of its own.
pub(crate) struct Attempt {
    pub(crate) entry: Arc<Entry>,
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) worker: Arc<str>,
    pub(crate) worker_context: WorkerContext,
    pub(crate) body: Bytes,
    pub(crate) generation: Arc<ChannelGeneration>,
    pub(crate) directives: Arc<Directives>,
    pub(crate) span: AttemptSpan,
}

/// What an attempt yields.
pub(crate) struct AttemptOutput {
    pub(crate) result: Result<Output, TaskError>,
    pub(crate) started_at: SystemTime,
    pub(crate) took: Duration,
}

impl Attempt {
    pub(crate) async fn run(self, cx: pool::TaskContext) -> AttemptOutput {
        let (started_at, started) = (SystemTime::now(), Instant::now());
        self.span.start();
        let result = if !self.generation.alive() {
            // It waited here while its channel died: the broker gives it to somebody else.
            Err(TaskError::interrupted())
        } else if self.envelope.expired(started_at) {
            Err(TaskError::expired())
        } else if let Some(word) = self.directives.effect_on(&self.envelope, started_at) {
            // The order came after the task was delivered.
            Err(match word {
                DirectiveEffect::Stopped => TaskError::stopped(),
                DirectiveEffect::Deferred(wait) => TaskError::snooze(wait),
            })
        } else {
            let (content_type, envelope) = (self.envelope.content_type, Arc::clone(&self.envelope));
            let context = TaskContext::new(self.envelope, self.worker, self.worker_context, self.span, cx);
            let call = async { self.entry.handler.call(context.clone(), content_type, self.body).await };
            let result = panics::with_task(envelope, call).await;
            let follow_ups = context.take_follow_ups();
            result
                .map(|output| Output { follow_ups, ..output })
                .map_err(|error| self.entry.options.retry.judge(error))
        };
        AttemptOutput { result, started_at, took: started.elapsed() }
    }
}

/// What becomes of a task.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It succeeded.
    Done { output: Output, started_at: SystemTime, took: Duration },
    /// An attempt is spent; another one where some are left.
    Retry { error: String, after: Option<Duration> },
    /// No further attempt.
    Dead { reason: DeadReason, error: String },
    /// Later; no attempt is spent.
    PutOff { wait: Duration },
    /// Back to the broker; no attempt is spent.
    HandBack,
    /// Still running and given up: left to the broker.
    Abandon,
}

/// An outcome, and how the attempt counts where there was one.
#[derive(Debug)]
pub(crate) struct AttemptEnd {
    pub(crate) outcome: Outcome,
    pub(crate) attempt: Option<TaskOutcome>,
    pub(crate) took: Option<Duration>,
}

impl AttemptEnd {
    /// Reads the pool's word.
    pub(crate) fn of(ending: Ending<AttemptOutput>) -> Self {
        match ending {
            Ending::Finished { output: AttemptOutput { result: Ok(output), started_at, took }, .. } => Self {
                outcome: Outcome::Done { output, started_at, took },
                attempt: Some(TaskOutcome::Success),
                took: Some(took),
            },
            Ending::Finished { output: AttemptOutput { result: Err(error), took, .. }, told } => {
                let (outcome, attempt) = Self::failed(error, told);
                Self { outcome, attempt: Some(attempt), took: Some(took) }
            }
            Ending::Panicked { message } => {
                let error = format!("the handler panicked: {message}");
                Self::untimed(Outcome::Retry { error, after: None }, TaskOutcome::Panic)
            }
            Ending::GaveUp { cause: Cause::Shutdown, stuck: true } => {
                Self::untimed(Outcome::Abandon, TaskOutcome::Interrupted)
            }
            Ending::GaveUp { cause, .. } => {
                let (outcome, attempt) = Self::told(cause);
                Self::untimed(outcome, attempt)
            }
            Ending::NotStarted { cause } => Self::untried(Self::told(cause).0),
        }
    }

    /// Of a task that had no attempt.
    pub(crate) fn untried(outcome: Outcome) -> Self {
        Self { outcome, attempt: None, took: None }
    }

    fn untimed(outcome: Outcome, attempt: TaskOutcome) -> Self {
        Self { outcome, attempt: Some(attempt), took: None }
    }

    fn failed(TaskError { wish, message, .. }: TaskError, told: Option<Cause>) -> (Outcome, TaskOutcome) {
        match (wish, told) {
            (ErrorAction::Dead(DeadReason::Stopped), _) => Self::told(Cause::Stopped),
            (ErrorAction::Dead(reason), _) => {
                (Outcome::Dead { reason, error: message }, TaskOutcome::Rejected)
            }
            // Whatever a task says after it was told to stop, it failed because it was told.
            (_, Some(cause)) => Self::told(cause),
            (ErrorAction::Retry { after }, None) => {
                (Outcome::Retry { error: message, after }, TaskOutcome::Error)
            }
            (ErrorAction::Snooze { wait }, None) => (Outcome::PutOff { wait }, TaskOutcome::Snoozed),
            (ErrorAction::HandBack, None) => (Outcome::HandBack, TaskOutcome::Interrupted),
        }
    }

    fn told(cause: Cause) -> (Outcome, TaskOutcome) {
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

    use garenne_protocol::task::{ContentType, Kind, NewTask, StandingOrder, TaskId};
    use serde::Deserialize;

    use super::*;
    use crate::{
        Worker, WorkerConfig, json_payload,
        testing::{TestWorker, Verdict},
    };

    #[derive(Deserialize)]
    struct Anything {}
    json_payload!(Anything, "any.thing");

    fn failed(error: TaskError, told: Option<Cause>) -> Outcome {
        let ran =
            AttemptOutput { result: Err(error), started_at: SystemTime::UNIX_EPOCH, took: Duration::ZERO };
        AttemptEnd::of(Ending::Finished { output: ran, told }).outcome
    }

    #[test]
    fn interruption_is_no_attempt_but_a_deadline_is() {
        assert!(matches!(failed(TaskError::retry("io"), Some(Cause::Shutdown)), Outcome::HandBack));
        assert!(matches!(failed(TaskError::interrupted(), Some(Cause::Deadline)), Outcome::Retry { .. }));
        let stopped = failed(TaskError::interrupted(), Some(Cause::Stopped));
        assert!(matches!(stopped, Outcome::Dead { reason: DeadReason::Stopped, .. }));
    }

    #[test]
    fn only_what_is_stuck_at_shutdown_is_abandoned() {
        let gave_up = |cause, stuck| AttemptEnd::of(Ending::GaveUp { cause, stuck }).outcome;
        assert!(matches!(gave_up(Cause::Shutdown, true), Outcome::Abandon));
        assert!(matches!(gave_up(Cause::Shutdown, false), Outcome::HandBack));
        assert!(matches!(gave_up(Cause::Deadline, true), Outcome::Retry { .. }));
    }

    #[test]
    fn a_final_refusal_stays_final_when_told_to_stop() {
        let outcome = failed(TaskError::reject("no"), Some(Cause::Shutdown));
        assert!(matches!(outcome, Outcome::Dead { reason: DeadReason::Rejected, .. }));
    }

    #[test]
    fn each_end_has_its_outcome_and_counts_as_one() {
        let told = |error, cause| {
            let ran = AttemptOutput { result: Err(error), started_at: SystemTime::UNIX_EPOCH, took: LONG };
            AttemptEnd::of(Ending::Finished { output: ran, told: cause })
        };
        let wait = Duration::from_secs(7);
        let cases = [
            (told(TaskError::retry("io"), None), "Retry { error: \"io\", after: None }", TaskOutcome::Error),
            (
                told(TaskError::retry_after("busy", wait), None),
                "Retry { error: \"busy\", after: Some(7s) }",
                TaskOutcome::Error,
            ),
            (told(TaskError::snooze(wait), None), "PutOff { wait: 7s }", TaskOutcome::Snoozed),
            (told(TaskError::interrupted(), None), "HandBack", TaskOutcome::Interrupted),
            (
                told(TaskError::invalid("no"), None),
                "Dead { reason: InvalidPayload, error: \"no\" }",
                TaskOutcome::Rejected,
            ),
            (
                told(TaskError::stopped(), Some(Cause::Shutdown)),
                "Dead { reason: Stopped, error: \"stopped by an operator\" }",
                TaskOutcome::Stopped,
            ),
            (
                told(TaskError::snooze(wait), Some(Cause::Deadline)),
                "Retry { error: \"the deadline passed\", after: None }",
                TaskOutcome::Timeout,
            ),
        ];
        for (end, outcome, attempt) in cases {
            assert_eq!((format!("{:?}", end.outcome), end.attempt), (outcome.to_owned(), Some(attempt)));
            assert_eq!(end.took, Some(LONG));
        }
    }

    const LONG: Duration = Duration::from_secs(3);

    #[test]
    fn ends_that_nobody_timed_count_all_the_same() {
        let panicked = AttemptEnd::of(Ending::Panicked { message: "boom".into() });
        assert_eq!((panicked.attempt, panicked.took), (Some(TaskOutcome::Panic), None));
        let Outcome::Retry { error, after: None } = panicked.outcome else { panic!("it is tried again") };
        assert_eq!(error, "the handler panicked: boom");
        let gave_up = |cause| AttemptEnd::of(Ending::GaveUp { cause, stuck: true });
        assert_eq!(gave_up(Cause::Shutdown).attempt, Some(TaskOutcome::Interrupted));
        assert_eq!(gave_up(Cause::Deadline).attempt, Some(TaskOutcome::Timeout));
        assert_eq!(gave_up(Cause::Stopped).attempt, Some(TaskOutcome::Stopped));
        let not_started = AttemptEnd::of(Ending::NotStarted { cause: Cause::Shutdown });
        assert_eq!((not_started.attempt, not_started.took), (None, None));
        assert!(matches!(not_started.outcome, Outcome::HandBack));
    }

    #[test]
    fn success_has_its_output_and_its_time() {
        let output = Output::json(&serde_json::json!(7)).unwrap();
        let ran = AttemptOutput { result: Ok(output), started_at: SystemTime::UNIX_EPOCH, took: LONG };
        let end = AttemptEnd::of(Ending::Finished { output: ran, told: Some(Cause::Shutdown) });
        assert_eq!((end.attempt, end.took), (Some(TaskOutcome::Success), Some(LONG)));
        let Outcome::Done { output, started_at, took } = end.outcome else { panic!("it succeeded") };
        assert_eq!((output.json.get(), started_at, took), ("7", SystemTime::UNIX_EPOCH, LONG));
    }

    /// The pool held it already when the order came, and nobody found it there.
    #[tokio::test]
    async fn a_task_whose_stop_order_is_known_does_not_start() {
        let started = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&started);
        let builder = Worker::builder(WorkerConfig::default()).handle(move |_, _: Anything| {
            flag.store(true, Ordering::Relaxed);
            async { Ok(serde_json::json!({})) }
        });
        let worker = TestWorker::new(builder).unwrap();
        let mut task = NewTask::new(Kind::parse("any.thing").unwrap(), ContentType::Json, b"{}".to_vec());
        task.id = TaskId::parse("unwanted").unwrap();
        let directives = Arc::new(Directives::default());
        directives.apply(&StandingOrder::Task { task: "unwanted".into(), at: 0 });
        let verdict = worker.run_under(&task, directives).await;
        assert!(matches!(verdict, Verdict::Dead(DeadReason::Stopped, _)), "{verdict:?}");
        assert!(!started.load(Ordering::Relaxed));
        assert!(matches!(worker.run_task(&task).await, Verdict::Done(_)));
    }
}
