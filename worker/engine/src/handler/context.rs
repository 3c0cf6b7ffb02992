//! The context that a handler receives with its payload.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::telemetry::Traces;
use garenne_pool as pool;
use garenne_protocol::{
    amqp::FieldTable,
    task::{Envelope, Kind, NewTask, TaskId, TraceContext, header},
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    TaskError,
    batch_records::BatchRecords,
    checkpoints::Checkpoints,
    data::{Data, WorkerData},
    follow_up::{FollowUp, FollowUps, Routes},
    progress::{ProgressBoard, ProgressReporter},
    team::{self, Team},
};
use crate::{consumer::MessageHead, fleet::Directives, spans::AttemptSpan};

/// The task that a handler runs, its cancellation token, and what the handler may do besides returning an output.
///
/// Every handler receives one. A clone refers to the same attempt.
///
/// ```
/// # use garenne::{TaskContext, TaskError};
/// async fn resize(cx: TaskContext, images: Vec<String>) -> Result<usize, TaskError> {
///     for (done, image) in images.iter().enumerate() {
///         tokio::select! {
///             () = async { /* resize one image */ drop(image) } => {}
///             () = cx.token().cancelled() => return Err(TaskError::interrupted()),
///         }
///         cx.progress((done + 1) as f64 / images.len() as f64);
///     }
///     cx.follow_up("image.publish", &images)?;
///     Ok(images.len())
/// }
/// ```
#[derive(Clone)]
pub struct TaskContext(Arc<Inner>);

struct Inner {
    envelope: Arc<Envelope>,
    head: Arc<MessageHead>,
    lane: Option<Arc<str>>,
    worker: Arc<WorkerContext>,
    pool: pool::TaskContext,
    follow_ups: FollowUps,
    progress: ProgressReporter,
    sharing: Sharing,
    span: AttemptSpan,
}

/// With what an attempt shares its worker or its work.
#[derive(Clone)]
pub(crate) enum Sharing {
    /// Nothing: a message of its own.
    Nothing,
    /// The other records of its batch share the worker. Its own index in the batch.
    Batch(Arc<BatchRecords>, usize),
    /// Idle workers share the work.
    Team(Arc<Team>),
}

impl Sharing {
    pub(crate) fn team(&self) -> Option<&Arc<Team>> {
        match self {
            Self::Team(team) => Some(team),
            Self::Nothing | Self::Batch(..) => None,
        }
    }
}

/// The state that all attempts of a worker share.
#[derive(Default)]
pub(crate) struct WorkerContext {
    pub(crate) name: Arc<str>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) progress: Arc<ProgressBoard>,
    pub(crate) traces: Traces,
    pub(crate) directives: Arc<Directives>,
    pub(crate) data: WorkerData,
    pub(crate) checkpoints: Arc<Checkpoints>,
}

impl TaskContext {
    pub(crate) fn new(
        envelope: Arc<Envelope>,
        head: Arc<MessageHead>,
        lane: Option<Arc<str>>,
        worker: Arc<WorkerContext>,
        sharing: Sharing,
        span: AttemptSpan,
        pool: pool::TaskContext,
    ) -> Self {
        let follow_ups = FollowUps::new(Arc::clone(&worker.routes));
        let progress = ProgressReporter::new(Arc::clone(&worker.progress), envelope.id.shared());
        Self(Arc::new(Inner { envelope, head, lane, worker, pool, follow_ups, progress, sharing, span }))
    }

    /// The task's id. Retries and redeliveries of a task have the same id.
    ///
    /// A task that was published without an id gets a random one when it is delivered. Its retries keep that id, but
    /// a redelivery gets another one.
    pub fn id(&self) -> &TaskId {
        &self.0.envelope.id
    }

    /// The task's kind.
    pub fn kind(&self) -> &Kind {
        &self.0.envelope.kind
    }

    /// The number of this attempt, from 1. Interrupted and deferred attempts do not count.
    pub fn attempt(&self) -> u32 {
        self.0.envelope.attempt + 1
    }

    /// The number of tasks between a published task and this one: 0 for a published task, 1 for its follow-ups,
    /// and so on.
    pub fn depth(&self) -> u32 {
        self.0.envelope.depth
    }

    /// The lane that the task came from. [`None`] for a record of a batch.
    pub fn lane(&self) -> Option<&str> {
        self.0.lane.as_deref()
    }

    /// Whether the payload is a call of a Celery sender: `{"args":[…],"kwargs":{…}}`, the positional and the keyword
    /// arguments of a function. Its copies stay such calls.
    #[cfg(feature = "celery")]
    pub fn is_celery(&self) -> bool {
        self.0.envelope.celery
    }

    /// Where a foreign message came from. [`None`] for a task.
    ///
    /// A lane with the setting `lanes.<name>.maps` receives foreign messages, as tasks of the kind
    /// [`FOREIGN_KIND`](garenne_protocol::task::FOREIGN_KIND). Nothing of what their senders wrote besides the payload
    /// has an effect.
    #[cfg(feature = "foreign")]
    pub fn source(&self) -> Option<crate::task::Source<'_>> {
        let source = self.0.envelope.arrival.as_ref()?.source.as_deref()?;
        crate::task::Source::from_label(source)
    }

    /// When a worker first received a foreign message, which its retries keep. Each message of a lane has another time.
    /// [`None`] for a task.
    #[cfg(feature = "foreign")]
    pub fn arrived_at(&self) -> Option<SystemTime> {
        let since = Duration::from_micros(self.0.envelope.arrival.as_ref()?.at_us?.unsigned_abs());
        SystemTime::UNIX_EPOCH.checked_add(since)
    }

    /// When the task was first accepted or created: the time of its [version](NewTask::version), the same in every delivery
    /// and every attempt. [`None`] if its publisher gave it none.
    pub fn accepted_at(&self) -> Option<SystemTime> {
        let envelope = &self.0.envelope;
        envelope.version_given.then(|| envelope.version.time())
    }

    /// When the task was published, by the clock and the word of its publisher. [`None`] if the message does not say it.
    pub fn enqueued_at(&self) -> Option<SystemTime> {
        let since = Duration::from_millis(self.0.envelope.published_ms()?.try_into().ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }

    /// The name of the worker that runs the task.
    pub fn worker(&self) -> &str {
        &self.0.worker.name
    }

    /// The task's group, if it belongs to one.
    pub fn group(&self) -> Option<&str> {
        self.0.envelope.group.as_deref()
    }

    /// The key that its publisher gave it, such as a customer. Publishers of this crate set the task's id otherwise.
    pub fn key(&self) -> Option<&str> {
        self.header_text(header::KEY)
    }

    /// What [`WorkerBuilder::data`](crate::WorkerBuilder::data) was given of this type. Handlers take it as an
    /// [argument](Data).
    pub fn data<T: Send + Sync + 'static>(&self) -> Option<Data<T>> {
        self.0.worker.data.get()
    }

    pub(super) fn envelope(&self) -> &Arc<Envelope> {
        &self.0.envelope
    }

    pub(super) fn checkpoints(&self) -> &Checkpoints {
        &self.0.worker.checkpoints
    }

    pub(super) fn has_follow_ups(&self) -> bool {
        self.0.follow_ups.are_requested()
    }

    pub(super) fn message_headers(&self) -> &Option<FieldTable> {
        self.0.head.properties.headers()
    }

    /// The trace context of this attempt, to pass on with requests (`traceparent` and `tracestate`) or to log
    /// (its [`trace_id`](TraceContext::trace_id)).
    ///
    /// [`None`] if the task was published without a trace and tracing is off.
    pub fn trace(&self) -> Option<TraceContext> {
        self.0.span.context(&self.0.envelope)
    }

    /// Creates spans.
    pub fn traces(&self) -> &Traces {
        &self.0.worker.traces
    }

    /// Cancelled when a long task is to stop: at its deadline, by an operator, or at shutdown. Never cancelled for
    /// a short task.
    pub fn token(&self) -> &CancellationToken {
        self.0.pool.token()
    }

    /// Why the token was cancelled. [`None`] while it is not.
    pub fn cause(&self) -> Option<pool::Cause> {
        self.0.pool.cause()
    }

    /// When the token is cancelled because of the deadline. [`None`] for a short task.
    pub fn deadline(&self) -> Option<tokio::time::Instant> {
        self.0.pool.deadline()
    }

    /// Requests a follow-up: a task that is published once this one has succeeded. Returns its id.
    ///
    /// Follow-ups are published after the sinks stored this task's result, and confirmed before this task is
    /// acked. So none is lost, and an attempt that fails publishes none: the next attempt has to request them again. So a
    /// [checkpoint](Self::checkpoint) that is set after a follow-up was requested has no effect. A follow-up belongs to the
    /// same group and trace.
    ///
    /// The id is derived from this task's id, the kind, and the number of earlier follow-ups of that kind. If this
    /// task is delivered again, a deterministic handler therefore requests the same tasks again. (A task that was
    /// published without an id gets a new one with each delivery, and so do its follow-ups.)
    ///
    /// [`follow_up_with`](Self::follow_up_with) sets a delay, a key, another group, a timeout, headers or an id.
    ///
    /// # Errors
    /// A [rejection](TaskError::reject) if
    /// - no lane takes `kind`,
    /// - `payload` cannot be serialized as JSON or is larger than `max_payload`,
    /// - this task has [`FollowUps::MAX_COUNT`] follow-ups already, or they would have more than [`FollowUps::MAX_BYTES`],
    /// - this task's [depth](Self::depth) is [`FollowUps::MAX_DEPTH`] already, or
    /// - the handler has returned.
    pub fn follow_up<P: Serialize + ?Sized>(&self, kind: &str, payload: &P) -> Result<TaskId, TaskError> {
        self.follow_up_with(FollowUp::new(kind, payload))
    }

    /// Requests a follow-up with options. Returns its id.
    ///
    /// # Errors
    /// As [`follow_up`](Self::follow_up), or an option is out of its bounds.
    pub fn follow_up_with(&self, follow_up: FollowUp) -> Result<TaskId, TaskError> {
        self.0.follow_ups.add(&self.0.envelope, follow_up)
    }

    /// Requests tasks of one kind that were made elsewhere, with the ids that they have. Many are published in few
    /// messages. Group and trace are those of this task, and each has a later version than the one before it.
    ///
    /// # Errors
    /// As [`follow_up`](Self::follow_up), where [`FollowUps::MAX_COUNT`] is the number of messages; or the body of a task
    /// is not JSON.
    pub fn follow_up_tasks(&self, tasks: Vec<NewTask>) -> Result<(), TaskError> {
        let trace = self.trace();
        let tasks = tasks.into_iter().enumerate();
        let tasks = tasks.map(|(index, task)| NewTask {
            trace: trace.clone(),
            version: self.0.envelope.version.plus(index),
            ..task
        });
        let tasks = tasks.collect();
        self.0.follow_ups.add_tasks(&self.0.envelope, tasks)
    }

    /// Reports the fraction of the work that is done, from 0 to 1. Shown by the admin port's `/pool` and by
    /// `garenne status --worker`.
    ///
    /// Values outside the range are clamped, NaN counts as 0. A report is one atomic store and may be made in a
    /// loop.
    pub fn progress(&self, done: f64) {
        self.0.progress.report(done);
    }

    /// Computes `unit(0)` to `unit(count - 1)` and returns the results in this order.
    ///
    /// Runs the units on this worker and, if the kind's [options](crate::TaskOptions::helpers) allow it, on idle
    /// workers of the lane. Which worker runs a unit does not affect the result, so a deterministic `unit` gives the
    /// same results with any number of workers. A unit blocks its worker: use this in CPU-bound kinds, and let a unit
    /// take about 1 to 20 ms. A panic of a unit is a panic of the task.
    ///
    /// # Errors
    /// [`TaskError::interrupted`] if the task was cancelled. Checked between units.
    pub async fn spread<T: Send + 'static>(
        &self,
        count: usize,
        unit: impl Fn(usize) -> T + Send + Sync + 'static,
    ) -> Result<Vec<T>, TaskError> {
        team::spread(self.0.sharing.team().map(Arc::as_ref), self.token(), count, unit).await
    }

    /// The records of the batch that this task came in, and its own index. [`None`] if it was a message of its own.
    pub fn batch_records(&self) -> Option<(&BatchRecords, usize)> {
        match &self.0.sharing {
            Sharing::Batch(records, index) => Some((records, *index)),
            Sharing::Nothing | Sharing::Team(_) => None,
        }
    }

    /// Takes the requested follow-ups. Later requests fail.
    pub(crate) fn take_follow_ups(&self) -> Vec<NewTask> {
        self.0.follow_ups.take()
    }
}
