//! Trying a handler without a broker: the same decoding, the same deadline, the same catching of
//! panics, in a pool of one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use garenne_common::telemetry::Metrics;
use garenne_pool::{Ending, OnEnd, Pool, PoolConfig, Spec};
use garenne_protocol::task::{ContentType, Envelope, Kind, NewTask, TaskId};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{
    consumer::{ChannelGeneration, SettlementCounters},
    execute::{Attempt, AttemptEnd, Outcome},
    execution::{Execution, ExecutionOutput},
    fleet::Directives,
    handler::{Output, Routes, TaskOptions, WorkerContext},
    registry::Registry,
    sink::Finished,
    spans::AttemptSpan,
    worker::WorkerBuilder,
};

/// What would become of a task.
#[derive(Debug)]
pub enum Verdict {
    /// Acked, with this output.
    Done(Output),
    /// Tried again, where attempts are left.
    Retry(String),
    /// A dead letter with this reason.
    Dead(garenne_protocol::task::DeadReason, String),
    /// Put off by this long.
    PutOff(Duration),
    /// Handed back to the broker.
    HandBack,
}

/// Runs handlers as a worker would, without one.
pub struct TestWorker {
    registry: Arc<Registry>,
    worker_context: WorkerContext,
}

impl TestWorker {
    /// The handlers of a builder.
    ///
    /// # Errors
    /// As [`WorkerBuilder::build`].
    pub fn new(builder: WorkerBuilder) -> Result<Self, crate::RegistryError> {
        let config = builder.config();
        let routes = Routes { lanes: config.lanes.clone(), max_payload: config.max_payload.bytes() };
        let worker_context = WorkerContext { routes: Arc::new(routes), ..WorkerContext::default() };
        Ok(Self { registry: builder.build()?.into_registry(), worker_context })
    }

    /// Runs one task of a kind with a JSON body, as its first attempt.
    ///
    /// # Panics
    /// When no handler takes the kind, or outside a tokio runtime.
    pub async fn run(&self, kind: &str, body: impl Into<Vec<u8>>) -> Verdict {
        let kind = Kind::parse(kind).expect("a kind");
        let task = NewTask::new(kind, ContentType::Json, body.into());
        self.run_task(&task).await
    }

    /// Runs one task.
    ///
    /// # Panics
    /// As [`TestWorker::run`].
    pub async fn run_task(&self, task: &NewTask) -> Verdict {
        self.run_under(task, Arc::default()).await
    }

    /// Runs one task on a worker that has seen these standing directives.
    pub(crate) async fn run_under(&self, task: &NewTask, directives: Arc<Directives>) -> Verdict {
        let entry = self.registry.get(task.kind.as_str()).expect("a kind with a handler");
        let envelope = Arc::new(envelope(task));
        let counters = SettlementCounters { tally: Arc::default(), lane: Metrics::new("test").lane("test") };
        let attempt = Attempt {
            entry: Arc::clone(entry),
            envelope: Arc::clone(&envelope),
            worker: "test".into(),
            worker_context: self.worker_context.clone(),
            body: task.body.clone().into(),
            generation: Arc::new(ChannelGeneration::new(counters, 1)),
            directives,
            span: AttemptSpan::default(),
        };
        let TaskOptions { deadline, cpu_bound, .. } = entry.options;
        let mut spec = Spec::short(envelope.id.shared());
        if let Some(most) = deadline {
            spec = spec.deadline(envelope.timeout.map_or(most, |asked| asked.min(most)));
        }
        if cpu_bound {
            spec = spec.on_threads();
        }
        let config = PoolConfig {
            name: "test".into(),
            queue: 1,
            workers: 1..=1,
            idle_timeout: Duration::from_secs(60),
            default_deadline: Duration::from_secs(60),
            grace: Duration::from_secs(2),
        };
        let pool = Pool::start(config, tokio::runtime::Handle::current()).expect("a valid pool");
        let (sender, ended) = oneshot::channel();
        let completion = OnEnd(move |ending: Ending<ExecutionOutput>| {
            drop(sender.send(AttemptEnd::of(ending.map(ExecutionOutput::task))))
        });
        assert!(
            pool.submit_detached(spec, Execution::Task(attempt), completion).is_ok(),
            "an empty pool has room"
        );
        match ended.await.expect("each task ends").outcome {
            Outcome::Done { output, .. } => Verdict::Done(output),
            Outcome::Retry { error, .. } => Verdict::Retry(error),
            Outcome::Dead { reason, error } => Verdict::Dead(reason, error),
            Outcome::PutOff { wait } => Verdict::PutOff(wait),
            Outcome::HandBack | Outcome::Abandon => Verdict::HandBack,
        }
    }
}

fn envelope(task: &NewTask) -> Envelope {
    let now = SystemTime::now();
    Envelope::read(task.kind.as_str(), &task.properties(now), None, |_| true, now)
        .expect("our own properties")
}

/// A finished task, for trying a sink.
///
/// # Panics
/// When `json` is no JSON.
pub fn finished(id: &str, json: &str) -> Finished {
    let mut task = NewTask::new(Kind::parse("test.kind").expect("a kind"), ContentType::Json, Vec::new());
    task.id = TaskId::parse(id).expect("an id");
    Finished {
        envelope: Arc::new(envelope(&task)),
        worker: "test".into(),
        started_at: SystemTime::now(),
        took: Duration::from_millis(1),
        output: Output {
            json: RawValue::from_string(json.to_owned()).expect("JSON"),
            rows: Vec::new(),
            follow_ups: Vec::new(),
        },
        trace: None,
    }
}
