//! What a handler knows of the task it runs, and what it may ask for besides its output.

use std::sync::Arc;

use garenne_common::telemetry::Traces;
use garenne_pool as pool;
use garenne_protocol::task::{Envelope, Kind, NewTask, TaskId, TraceContext};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    TaskError,
    batch_records::BatchRecords,
    follow_up::{FollowUps, Routes},
    progress::{ProgressBoard, ProgressReporter},
};
use crate::spans::AttemptSpan;

/// Handed to every handler. Cheap to clone.
#[derive(Clone)]
pub struct TaskContext(Arc<Inner>);

struct Inner {
    envelope: Arc<Envelope>,
    worker: Arc<str>,
    pool: pool::TaskContext,
    follow_ups: FollowUps,
    progress: ProgressReporter,
    batch: Option<(Arc<BatchRecords>, usize)>,
    span: AttemptSpan,
    traces: Traces,
}

/// What contexts of one worker share, and those of one batch.
#[derive(Clone, Default)]
pub(crate) struct WorkerContext {
    pub(crate) routes: Arc<Routes>,
    pub(crate) progress: Arc<ProgressBoard>,
    pub(crate) traces: Traces,
    /// The batch that the task is a record of, and its place in it.
    pub(crate) batch: Option<(Arc<BatchRecords>, usize)>,
}

impl TaskContext {
    pub(crate) fn new(
        envelope: Arc<Envelope>,
        worker: Arc<str>,
        WorkerContext { routes, progress, traces, batch }: WorkerContext,
        span: AttemptSpan,
        pool: pool::TaskContext,
    ) -> Self {
        let follow_ups = FollowUps::new(routes);
        let progress = ProgressReporter::new(progress, envelope.id.shared());
        Self(Arc::new(Inner { envelope, worker, pool, follow_ups, progress, batch, span, traces }))
    }

    /// The task's id: stable over retries and redeliveries.
    pub fn id(&self) -> &TaskId {
        &self.0.envelope.id
    }

    /// The kind.
    pub fn kind(&self) -> &Kind {
        &self.0.envelope.kind
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.envelope.attempt + 1
    }

    /// How many tasks stand between this one and one that somebody published; 0 for such a one.
    pub fn depth(&self) -> u32 {
        self.0.envelope.depth
    }

    /// The worker it runs on.
    pub fn worker(&self) -> &str {
        &self.0.worker
    }

    /// The group, if it belongs to one.
    pub fn group(&self) -> Option<&str> {
        self.0.envelope.group.as_deref()
    }

    /// The trace this attempt belongs to, for requests it makes: `traceparent` and `tracestate`, or the
    /// [`trace_id`](TraceContext::trace_id) for a log line. Nothing where the task came without one and
    /// traces are off.
    pub fn trace(&self) -> Option<TraceContext> {
        self.0.span.context(&self.0.envelope)
    }

    /// What makes spans.
    pub fn traces(&self) -> &Traces {
        &self.0.traces
    }

    /// Cancelled when a long task should stop: deadline, operator or shutdown. A short task's never is.
    pub fn token(&self) -> &CancellationToken {
        self.0.pool.token()
    }

    /// When the token will be cancelled for lack of time; a short task has no such moment.
    pub fn deadline(&self) -> Option<tokio::time::Instant> {
        self.0.pool.deadline()
    }

    /// Starts another task once this one has succeeded. Answers its id.
    ///
    /// It is published after the sinks accepted this task's result and confirmed before this task is
    /// acked, so it is never lost, and an attempt that fails starts nothing. Its id follows from this
    /// task's, the kind and how many of that kind were asked for before: when this task is delivered
    /// again, the same handler starts the same tasks. (A task that was published without an id gets a
    /// new one with each delivery, and so do its follow-ups.) It belongs to the same group and trace.
    ///
    /// # Errors
    /// A rejection: a kind that no lane takes, a payload that is no JSON or larger than
    /// `max_payload`, more than [`FollowUps::MOST`] of them, deeper than [`FollowUps::DEEPEST`], or asked for
    /// when the task had ended.
    pub fn follow_up(&self, kind: &str, payload: &impl Serialize) -> Result<TaskId, TaskError> {
        self.0.follow_ups.add(&self.0.envelope, kind, None, payload)
    }

    /// The same with an id of its own choice, for what several tasks may notice and only one should
    /// start: tasks of one id have one effect.
    ///
    /// # Errors
    /// As [`follow_up`](Self::follow_up).
    pub fn follow_up_as(
        &self,
        id: TaskId,
        kind: &str,
        payload: &impl Serialize,
    ) -> Result<TaskId, TaskError> {
        self.0.follow_ups.add(&self.0.envelope, kind, Some(id), payload)
    }

    /// Says how much is done, from 0 to 1, for the admin port's `/pool` and `garenne status --worker`.
    /// Cheap enough to be called in a loop; nothing is sent anywhere.
    pub fn progress(&self, done: f64) {
        self.0.progress.report(done);
    }

    /// All records of the batch message that the task is a record of, and the task's index among them. None if the
    /// task is a message of its own.
    pub fn batch_records(&self) -> Option<(&BatchRecords, usize)> {
        self.0.batch.as_ref().map(|(batch_records, place)| (&**batch_records, *place))
    }

    /// The follow-ups; none can be added afterwards.
    pub(crate) fn take_follow_ups(&self) -> Vec<NewTask> {
        self.0.follow_ups.take()
    }
}
