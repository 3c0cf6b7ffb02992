//! Tests of handlers without a broker.
//!
//! A [`TestWorker`] runs tasks like a worker does: it decodes the payload, applies the deadline, and catches panics.
//!
//! ```
//! # use garenne::{TaskContext, TaskError, Worker, WorkerConfig, json_payload};
//! use garenne::testing::{TestOutcome, TestWorker};
//!
//! #[derive(serde::Deserialize)]
//! struct Greet {
//!     name: String,
//! }
//! json_payload!(Greet, "demo.greet");
//!
//! async fn greet(_: TaskContext, greet: Greet) -> Result<String, TaskError> {
//!     Ok(format!("hello {}", greet.name))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = TestWorker::new(Worker::builder(WorkerConfig::default()).handle(greet))?;
//! let TestOutcome::Done(output) = worker.run("demo.greet", r#"{"name": "you"}"#).await else {
//!     panic!("the task succeeds");
//! };
//! assert_eq!(output.json.get(), r#""hello you""#);
//! # Ok(())
//! # }
//! ```

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use garenne_common::{clock, telemetry::Metrics};
use garenne_pool::{Ending, OnEnd, Pool, PoolConfig};
use garenne_protocol::amqp::BasicProperties;
use garenne_protocol::task::{ContentType, Envelope, ForeignMessage, Kind, NewTask, Source, TaskId};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{
    consumer::{ChannelGeneration, SettlementCounters},
    execute::{Attempt, AttemptEnd, AttemptOutput, Outcome},
    execution::Execution,
    handler::{Output, Routes, Sharing, WorkerContext},
    registry::Registry,
    sink::FinishedTask,
    spans::AttemptSpan,
    worker::{WorkerBuilder, WorkerError},
};

/// The settlement that a worker would make after the attempt.
#[derive(Debug)]
pub enum TestOutcome {
    /// Store this output and ack the task.
    Done(Output),
    /// Retry it, if attempts are left. With the error's text.
    Retry(String),
    /// Dead-letter it, for this reason and with this error text.
    Dead(garenne_protocol::task::DeadReason, String),
    /// Run it again after this time, without spending an attempt.
    Defer(Duration),
    /// Return it to its queue, without spending an attempt.
    HandBack,
}

type TestCompletion = OnEnd<Box<dyn FnOnce(Ending<Option<AttemptOutput>>) + Send>>;
pub(crate) type TestPool = Pool<Execution, TestCompletion>;

/// Runs the handlers of a [`WorkerBuilder`] without a broker. See the [module's documentation](self).
pub struct TestWorker {
    registry: Arc<Registry>,
    worker: Arc<WorkerContext>,
    workers: usize,
}

impl TestWorker {
    /// Creates a test worker with the handlers and settings of a builder.
    ///
    /// # Errors
    /// As [`WorkerBuilder::build`].
    pub fn new(builder: WorkerBuilder) -> Result<Self, WorkerError> {
        let config = builder.config();
        let routes = Routes { lanes: config.lanes.clone(), max_payload: config.max_payload.bytes() };
        let worker_context =
            WorkerContext { name: "test".into(), routes: Arc::new(routes), ..WorkerContext::default() };
        let registry = builder.build()?.into_registry();
        Ok(Self { registry, worker: Arc::new(worker_context), workers: 1 })
    }

    /// Sets how many workers the lane has, 1 by default. Those that are idle may help with a task.
    #[must_use]
    pub fn workers(self, workers: NonZeroUsize) -> Self {
        Self { workers: workers.get(), ..self }
    }

    /// Runs the first attempt at a task with a JSON body.
    ///
    /// # Panics
    /// If no handler takes the kind, or outside of a Tokio runtime.
    pub async fn run(&self, kind: &str, body: impl Into<Vec<u8>>) -> TestOutcome {
        let kind = Kind::parse(kind).expect("the kind is valid");
        let task = NewTask::new(kind, ContentType::Json, body.into());
        self.run_task(&task).await
    }

    /// Runs the first attempt at a task.
    ///
    /// # Panics
    /// As [`TestWorker::run`].
    pub async fn run_task(&self, task: &NewTask) -> TestOutcome {
        self.run_in(&self.start_pool(), task).await
    }

    /// Runs the first attempt at a foreign message that came to `lane`.
    ///
    /// # Panics
    /// If no handler takes the kind of foreign messages, or outside of a Tokio runtime.
    pub async fn run_foreign(&self, lane: &str, source: Source<'_>, body: impl Into<Bytes>) -> TestOutcome {
        let now = clock::now();
        let properties = ForeignMessage::read(&BasicProperties::default(), source, now).properties;
        let envelope =
            Envelope::read("", &properties, None, |_| true, now).expect("the properties are valid");
        let attempt = self.attempt(envelope, Some(lane.into()), body.into());
        Self::finish(&self.start_pool(), attempt).await
    }

    /// The directives that are in effect: none, unless a test applies some.
    #[cfg(test)]
    pub(crate) fn directives(&self) -> &crate::fleet::Directives {
        &self.worker.directives
    }

    /// Starts a pool, as a lane has one.
    pub(crate) fn start_pool(&self) -> TestPool {
        let config = PoolConfig {
            name: "test".into(),
            queue: self.workers.max(10),
            workers: self.workers..=self.workers,
            idle_timeout: Duration::from_secs(60),
            default_deadline: Duration::from_secs(60),
            grace: Duration::from_secs(2),
        };
        Pool::start(config, tokio::runtime::Handle::current()).expect("the pool's configuration is valid")
    }

    /// Runs a task in a pool that has room for it.
    pub(crate) async fn run_in(&self, pool: &TestPool, task: &NewTask) -> TestOutcome {
        let attempt = self.attempt(envelope(task), None, task.body.clone().into());
        Self::finish(pool, attempt).await
    }

    fn attempt(&self, envelope: Envelope, lane: Option<Arc<str>>, body: Bytes) -> Attempt {
        let entry = self.registry.get(envelope.kind.as_str()).expect("the kind has a handler");
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        let attempt = Attempt {
            entry: Arc::clone(entry),
            envelope: Arc::new(envelope),
            lane,
            worker: Arc::clone(&self.worker),
            sharing: Sharing::Nothing,
            body,
            generation: Arc::new(ChannelGeneration::new(counters, 1)),
            span: AttemptSpan::default(),
        };
        attempt.with_team()
    }

    async fn finish(pool: &TestPool, attempt: Attempt) -> TestOutcome {
        let spec = attempt.spec(attempt.deadline());
        let (sender, ended) = oneshot::channel();
        let completion: TestCompletion = OnEnd(Box::new(move |ending: Ending<Option<AttemptOutput>>| {
            let ending = ending.map(|output| output.expect("a task has an output"));
            drop(sender.send(AttemptEnd::of(ending)));
        }));
        assert!(
            pool.submit_detached(spec, Execution::new(attempt, None), completion).is_ok(),
            "the pool has room"
        );
        match ended.await.expect("each task ends").outcome {
            Outcome::Done { output, .. } => TestOutcome::Done(output),
            Outcome::Retry { error, .. } => TestOutcome::Retry(error),
            Outcome::Dead { reason, error } => TestOutcome::Dead(reason, error),
            Outcome::Defer { wait } => TestOutcome::Defer(wait),
            Outcome::HandBack | Outcome::Abandon => TestOutcome::HandBack,
        }
    }
}

fn envelope(task: &NewTask) -> Envelope {
    let now = clock::now();
    Envelope::read(task.kind.as_str(), &task.properties(now), None, |_| true, now)
        .expect("a new task has valid properties")
}

/// A finished task of kind `test.kind`, to test a [`Sink`](crate::sink::Sink) with.
///
/// # Panics
/// If `id` is not a valid task id or `json` is not valid JSON.
pub fn finished(id: &str, json: &str) -> FinishedTask {
    let mut task =
        NewTask::new(Kind::parse("test.kind").expect("the kind is valid"), ContentType::Json, Vec::new());
    task.id = TaskId::parse(id).expect("the id is valid");
    FinishedTask {
        envelope: Arc::new(envelope(&task)),
        worker: "test".into(),
        started_at: clock::now(),
        took: Duration::from_millis(1),
        output: Output {
            json: RawValue::from_string(json.to_owned()).expect("the output is valid JSON"),
            rows: Vec::new(),
            follow_ups: Vec::new(),
            refused: None,
        },
        trace: None,
    }
}
