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

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use garenne_common::{clock, telemetry::Metrics};
use garenne_pool::{Ending, OnEnd, Pool, PoolConfig, Stop};
use garenne_protocol::{
    amqp::{AMQPValue, BasicProperties, ShortString},
    task::{
        ContentType, DeadReason, Envelope, HeaderValue, Kind, NewTask, Source, TaskId, foreign_properties,
        header,
    },
};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{sync::oneshot, time::timeout};

use crate::{
    attempt::{Attempt, AttemptEnd, AttemptOutput, Outcome},
    consumer::{ChannelGeneration, MessageHead, SettlementCounters},
    execution::Execution,
    handler::{Output, Routes, Sharing, WorkerContext},
    layer::Layer,
    panics::lock,
    registry::Registry,
    sink::FinishedTask,
    spans::AttemptSpan,
    worker::{WorkerBuilder, WorkerError},
};

/// The settlement that a worker would make after the attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum TestOutcome {
    /// Store this output, publish its follow-ups and ack the task.
    Done(Output),
    /// Retry it.
    Retry {
        /// The error's text.
        error: String,
        /// The time until the next attempt: the one that the handler gave, or the mean back-off of the kind.
        wait: Duration,
    },
    /// Dead-letter it.
    Dead {
        /// Why. [`DeadReason::AttemptsExhausted`] if this was the last attempt.
        reason: DeadReason,
        /// The error's text.
        error: String,
    },
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
    max_attempts: u32,
    hard_grace: Duration,
    workers: usize,
    /// The checkpoints of tasks whose next attempt was not made yet, by the tasks' ids.
    checkpoints: Mutex<BTreeMap<TaskId, Box<str>>>,
}

impl TestWorker {
    /// Creates a test worker with the handlers, layers, data and settings of a builder.
    ///
    /// # Errors
    /// As [`WorkerBuilder::build`].
    pub fn new<L: Layer>(builder: WorkerBuilder<L>) -> Result<Self, WorkerError> {
        let config = builder.config();
        let (max_attempts, hard_grace) = (config.max_attempts, config.hard_grace);
        let routes = Routes { lanes: config.lanes.clone(), max_payload: config.max_payload.bytes() };
        let (registry, data) = builder.build()?.into_parts();
        let worker =
            WorkerContext { name: "test".into(), routes: Arc::new(routes), data, ..WorkerContext::default() };
        let (worker, checkpoints) = (Arc::new(worker), Mutex::default());
        Ok(Self { registry, worker, max_attempts, hard_grace, workers: 1, checkpoints })
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
        self.task(kind, body).run().await
    }

    /// A task with a JSON body, for an attempt at it that is not its first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use garenne::{TaskContext, TaskError, Worker, WorkerConfig, json_payload, testing::{TestOutcome, TestWorker}};
    /// # #[derive(serde::Deserialize)]
    /// # struct Greet {}
    /// # json_payload!(Greet, "demo.greet");
    /// async fn greet(context: TaskContext, _: Greet) -> Result<String, TaskError> {
    ///     match context.header_text("tenant") {
    ///         Some(tenant) => Ok(format!("hello {tenant}, for the {}rd time", context.attempt())),
    ///         None => Err(TaskError::retry("the tenant is unknown")),
    ///     }
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> garenne::Result<()> {
    /// let worker = TestWorker::new(Worker::builder(WorkerConfig::default()).handle(greet))?;
    ///
    /// let TestOutcome::Done(output) = worker.task("demo.greet", "{}").attempt(3).header("tenant", "a").run().await else {
    ///     panic!("the task succeeds");
    /// };
    /// assert_eq!(output.json.get(), r#""hello a, for the 3rd time""#);
    ///
    /// let TestOutcome::Retry { wait, .. } = worker.task("demo.greet", "{}").attempt(2).run().await else {
    ///     panic!("the task is retried");
    /// };
    /// assert_eq!(wait, Duration::from_secs(3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn task(&self, kind: &str, body: impl Into<Vec<u8>>) -> TestTask<'_> {
        let kind = Kind::parse(kind).expect("the kind is valid");
        self.new_task(NewTask::new(kind, ContentType::Json, body.into()))
    }

    /// Runs the first attempt at a task.
    ///
    /// # Panics
    /// As [`TestWorker::run`].
    pub async fn run_task(&self, task: &NewTask) -> TestOutcome {
        self.new_task(task.clone()).run().await
    }

    fn new_task(&self, task: NewTask) -> TestTask<'_> {
        TestTask { worker: self, task, attempt: 1, headers: Vec::new(), shutdown: None }
    }

    /// Runs the first attempt at a foreign message that came to `lane`.
    ///
    /// # Panics
    /// If no handler takes the kind of foreign messages, or outside of a Tokio runtime.
    pub async fn run_foreign(&self, lane: &str, source: Source<'_>, body: impl Into<Bytes>) -> TestOutcome {
        let properties = foreign_properties(&BasicProperties::default(), source, clock::now());
        let attempt = self.attempt("", properties, Some(lane.into()), body.into());
        self.finish(&self.start_pool(), attempt).await
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
            grace: self.hard_grace,
        };
        Pool::start(config, tokio::runtime::Handle::current()).expect("the pool's configuration is valid")
    }

    /// Runs a task in a pool that has room for it.
    #[cfg(test)]
    pub(crate) async fn run_in(&self, pool: &TestPool, task: &NewTask) -> TestOutcome {
        let properties = task.properties(clock::now());
        let attempt = self.attempt(task.kind.as_str(), properties, None, task.body.clone().into());
        self.finish(pool, attempt).await
    }

    fn attempt(
        &self,
        routing_key: &str,
        properties: BasicProperties,
        lane: Option<Arc<str>>,
        body: Bytes,
    ) -> Attempt {
        let envelope = read(routing_key, &properties);
        let kind = envelope.kind.as_str();
        let entry =
            self.registry.get(kind).unwrap_or_else(|| panic!("the worker has no handler of kind {kind:?}"));
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        let head = MessageHead {
            routing_key: routing_key.into(),
            exchange: ShortString::default(),
            redelivered: false,
            received_at: clock::now(),
            properties,
            unreadable: None,
        };
        let attempt = Attempt {
            entry: Arc::clone(entry),
            envelope: Arc::new(envelope),
            lane,
            worker: Arc::clone(&self.worker),
            sharing: Sharing::Nothing,
            body,
            head: Arc::new(head),
            generation: Arc::new(ChannelGeneration::new(counters, 1)),
            span: AttemptSpan::default(),
        };
        attempt.with_team()
    }

    async fn finish(&self, pool: &TestPool, attempt: Attempt) -> TestOutcome {
        let (entry, spent) = (Arc::clone(&attempt.entry), attempt.envelope.attempt + 1);
        let task = Arc::clone(&attempt.envelope);
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
        let outcome = ended.await.expect("each task ends").outcome;
        let checkpoint = self.worker.checkpoints.take(&task);
        if let (Some(json), Outcome::Retry { .. } | Outcome::Defer { .. }) = (checkpoint, &outcome) {
            lock(&self.checkpoints).insert(task.id.clone(), json);
        }
        match outcome {
            Outcome::Done { output, .. } => TestOutcome::Done(output),
            Outcome::Retry { error, after } => {
                let retry = &entry.options.retry;
                if spent >= retry.most_attempts(self.max_attempts) {
                    return TestOutcome::Dead { reason: DeadReason::AttemptsExhausted, error };
                }
                TestOutcome::Retry { error, wait: after.unwrap_or_else(|| retry.backoff(spent)) }
            }
            Outcome::Dead { reason, error } => TestOutcome::Dead { reason, error },
            Outcome::Defer { wait } => TestOutcome::Defer(wait),
            Outcome::HandBack | Outcome::Abandon => TestOutcome::HandBack,
        }
    }
}

/// A task of a [`TestWorker`].
#[must_use = "the attempt is made by `run`"]
pub struct TestTask<'w> {
    worker: &'w TestWorker,
    task: NewTask,
    attempt: u32,
    headers: Vec<(ShortString, AMQPValue)>,
    shutdown: Option<Duration>,
}

impl TestTask<'_> {
    /// Sets the task's id. By default it is random.
    pub fn id(self, id: &str) -> Self {
        let id = TaskId::parse(id).expect("the id is valid");
        Self { task: NewTask { id, ..self.task }, ..self }
    }

    /// Sets the number of the attempt, from 1. Default: 1.
    pub fn attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// Sets the task's group.
    pub fn group(self, group: impl Into<String>) -> Self {
        Self { task: NewTask { group: Some(group.into()), ..self.task }, ..self }
    }

    /// Sets the task's key.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { task: NewTask { key: Some(key.into()), ..self.task }, ..self }
    }

    /// Adds a header with a text, a number or a truth value.
    pub fn header<'v>(mut self, name: &str, value: impl Into<HeaderValue<'v>>) -> Self {
        self.headers.push((name.into(), value.into().to_amqp()));
        self
    }

    /// Sets the checkpoint that the attempt reads. By default it is that of the last attempt of this worker at a task with this
    /// id that failed or was deferred.
    ///
    /// # Panics
    /// If the value cannot be written as JSON.
    pub fn checkpoint<T: Serialize + ?Sized>(self, value: &T) -> Self {
        let json = serde_json::to_string(value).expect("the checkpoint can be written as JSON");
        self.header(header::CHECKPOINT, json.as_str())
    }

    /// Stops the worker hard this time after the start of the task. A handler that looks at its token sees it cancelled, one
    /// that does not is dropped `hard_grace` later.
    ///
    /// With paused time (`#[tokio::test(start_paused = true)]`) nothing waits for real.
    pub fn shutdown_after(self, time: Duration) -> Self {
        Self { shutdown: Some(time), ..self }
    }

    /// Runs the attempt.
    ///
    /// # Panics
    /// If no handler takes the kind, if a property is out of its bounds, or outside of a Tokio runtime.
    pub async fn run(self) -> TestOutcome {
        let Self { worker, task, attempt, headers, shutdown } = self;
        let mut properties = task.properties(clock::now());
        let mut table = properties.headers().clone().unwrap_or_default();
        table.insert(header::ATTEMPT.into(), AMQPValue::LongLongInt(i64::from(attempt.saturating_sub(1))));
        if let Some(json) = lock(&worker.checkpoints).get(&task.id) {
            table.insert(header::CHECKPOINT.into(), header::long(json));
        }
        for (name, value) in headers {
            table.insert(name, value);
        }
        properties = properties.with_headers(table);
        let pool = worker.start_pool();
        let attempt = worker.attempt(task.kind.as_str(), properties, None, task.body.into());
        let mut running = pin!(worker.finish(&pool, attempt));
        let Some(after) = shutdown else { return running.await };
        match timeout(after, &mut running).await {
            Ok(outcome) => outcome,
            Err(_) => {
                pool.begin_shutdown(Stop::Hard { grace: worker.hard_grace });
                running.await
            }
        }
    }
}

fn read(routing_key: &str, properties: &BasicProperties) -> Envelope {
    Envelope::read(routing_key, properties, None, |_| true, clock::now()).expect("the properties are valid")
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
        envelope: Arc::new(read(task.kind.as_str(), &task.properties(clock::now()))),
        worker: "test".into(),
        started_at: clock::now(),
        took: Duration::from_millis(1),
        output: Output::raw(RawValue::from_string(json.to_owned()).expect("the output is valid JSON")),
        trace: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TaskContext, TaskError, TaskOptions, Worker, WorkerConfig, json_payload};

    #[derive(serde::Deserialize)]
    struct Any {}
    json_payload!(Any, "any.thing");

    /// Waits for the token, or for ever.
    async fn wait(context: TaskContext, _: Any) -> Result<(), TaskError> {
        if context.group() == Some("deaf") {
            std::future::pending::<()>().await;
        }
        context.token().cancelled().await;
        Err(TaskError::interrupted())
    }

    async fn tell(context: TaskContext, _: Any) -> Result<String, TaskError> {
        let headers = context.headers().filter(|(name, _)| !name.starts_with("garenne-"));
        let headers: Vec<_> = headers.map(|(name, value)| format!("{name}={value}")).collect();
        let (id, group, key) = (context.id(), context.group(), context.key());
        Ok(format!("{id} {} {group:?} {key:?} {headers:?}", context.attempt()))
    }

    async fn fail(_: Any) -> anyhow::Result<()> {
        Err(std::io::Error::other("busy"))?;
        Ok(())
    }

    fn worker() -> TestWorker {
        let builder = Worker::builder(WorkerConfig::default())
            .handle_with(wait, TaskOptions::long())
            .handle_kind("tell", tell, TaskOptions::short())
            .handle_kind("fail", fail, TaskOptions::short());
        TestWorker::new(builder).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_cancels_a_task_and_drops_one_that_ignores_it() {
        for group in ["polite", "deaf"] {
            let second = Duration::from_secs(1);
            let outcome = worker().task("any.thing", "{}").group(group).shutdown_after(second).run().await;
            assert!(matches!(outcome, TestOutcome::HandBack), "{group}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_handler_reads_what_the_test_set() {
        let worker = worker();
        let task = worker.task("tell", "{}").id("a").attempt(3).group("g").key("k").header("tenant", "t");
        let TestOutcome::Done(output) = task.run().await else { panic!("it succeeds") };
        let told: String = serde_json::from_str(output.json.get()).unwrap();
        assert_eq!(told, r#"a 3 Some("g") Some("k") ["tenant=t"]"#);
    }

    #[tokio::test]
    async fn a_retry_is_due_after_the_back_off_and_the_last_attempt_is_dead() {
        let worker = worker();
        for (attempt, seconds) in [(1, 1), (2, 3), (4, 27)] {
            let outcome = worker.task("fail", "{}").attempt(attempt).run().await;
            let TestOutcome::Retry { error, wait } = outcome else { panic!("{outcome:?}") };
            assert_eq!((error.as_str(), wait), ("busy", Duration::from_secs(seconds)));
        }
        let outcome = worker.task("fail", "{}").attempt(5).run().await;
        let TestOutcome::Dead { reason: DeadReason::AttemptsExhausted, error } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(error, "busy");
    }
}
