//! Sinks: where results are stored. A task is acked once every sink has stored its result.
//!
//! Implement [`Sink`] to store results elsewhere, and add it to the worker with
//! [`WorkerBuilder::sink`](crate::WorkerBuilder::sink). The worker gathers results: while one batch is written, the
//! next one fills. At low load each result is written at once, at high load batches are large.
//!
//! If a sink is unavailable, the results are offered again with growing pauses. The worker is not ready meanwhile, its
//! prefetch fills, and the broker keeps the remaining tasks. No result is lost, because no task is acked before its
//! result is stored.
//!
//! A sink may have [background work](Sink::background), such as publishing tasks that it has stored with the results.

mod background;
mod health;
pub(crate) mod results;
mod sink_buffer;
pub mod stdout;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt, future::BoxFuture};
use garenne_protocol::task::{Envelope, TraceContext};
use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::handler::Output;

pub(crate) use background::{BackgroundWork, WorkerState};
pub use background::{LaneFigures, SinkContext};
pub(crate) use health::SinkMetrics;
pub(crate) use sink_buffer::{SinkAnswers, SinkBuffer};

/// A finished task and its result, on the way to the sinks.
#[derive(Clone, Debug)]
pub struct FinishedTask {
    /// The task.
    pub envelope: Arc<Envelope>,
    /// The name of the worker that ran it.
    pub worker: Arc<str>,
    /// When the attempt started.
    pub started_at: SystemTime,
    /// How long the attempt ran.
    pub took: Duration,
    /// The handler's output.
    pub output: Output,
    /// The trace context of the attempt, for sinks that send requests or messages.
    pub trace: Option<TraceContext>,
}

#[derive(Serialize)]
struct ResultJson<'a> {
    task_id: &'a str,
    kind: &'a str,
    attempt: u32,
    worker: &'a str,
    started_at: String,
    duration_ms: f64,
    output: &'a RawValue,
}

impl FinishedTask {
    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.envelope.attempt + 1
    }

    /// How long the attempt ran, in milliseconds, rounded to microseconds.
    pub fn duration_ms(&self) -> f64 {
        (self.took.as_secs_f64() * 1e6).round() / 1e3
    }

    /// The result as one JSON object, without a line end.
    ///
    /// Its fields are `task_id`, `kind`, `attempt`, `worker`, `started_at` (RFC 3339), `duration_ms` and `output`.
    pub fn to_json(&self) -> Vec<u8> {
        let started_at = OffsetDateTime::from(self.started_at).format(&Rfc3339);
        serde_json::to_vec(&ResultJson {
            task_id: self.envelope.id.as_str(),
            kind: self.envelope.kind.as_str(),
            attempt: self.attempt(),
            worker: &self.worker,
            started_at: started_at.expect("the year has four digits"),
            duration_ms: self.duration_ms(),
            output: &self.output.json,
        })
        .expect("strings, numbers and valid JSON can be serialized")
    }
}

/// A sink's answer for one result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkAnswer {
    /// The result is stored, by this write or an earlier one.
    Stored,
    /// Another result is stored for this task. The task becomes a dead letter with reason `conflict`.
    Conflict(String),
    /// The result can never be stored, such as text with a NUL in Postgres. The task becomes a dead letter with
    /// reason `rejected`.
    Refused(String),
}

impl SinkAnswer {
    /// Why the result is not stored; [`None`] if it is.
    fn error(&self) -> Option<&str> {
        match self {
            Self::Stored => None,
            Self::Conflict(detail) | Self::Refused(detail) => Some(detail),
        }
    }

    /// Combines the answers of two sinks for one result. A conflict takes precedence over a refusal, and a refusal
    /// over the rest.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Conflict(detail), _) | (_, Self::Conflict(detail)) => Self::Conflict(detail),
            (Self::Refused(detail), _) | (_, Self::Refused(detail)) => Self::Refused(detail),
            (Self::Stored, Self::Stored) => Self::Stored,
        }
    }
}

/// A sink is unavailable. The results will be offered again.
#[derive(Clone, Debug, Error)]
#[error("sink {sink} is unavailable: {detail}")]
pub struct SinkError {
    /// The name of the sink.
    pub sink: &'static str,
    /// The failure.
    pub detail: String,
}

/// Stores results.
///
/// A write must be idempotent: a result may be offered again after it was stored, by this worker or another one.
/// `garenne` acks a task only after [`write`](Self::write) answered for it, so a sink must not answer before
/// the result is durable.
///
/// ```
/// # use futures_util::future::BoxFuture;
/// # use garenne::sink::{FinishedTask, Sink, SinkAnswer, SinkError};
/// /// Appends results to a file.
/// struct FileSink(std::path::PathBuf);
///
/// impl Sink for FileSink {
///     fn name(&self) -> &'static str {
///         "file"
///     }
///
///     fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
///         Box::pin(async move {
///             let lines: Vec<u8> =
///                 batch.iter().flat_map(|it| [it.to_json(), b"\n".to_vec()]).flatten().collect();
///             append(&self.0, &lines)
///                 .await
///                 .map_err(|error| SinkError { sink: self.name(), detail: error.to_string() })?;
///             Ok(vec![SinkAnswer::Stored; batch.len()])
///         })
///     }
/// }
/// # async fn append(_: &std::path::Path, _: &[u8]) -> std::io::Result<()> { Ok(()) }
/// ```
pub trait Sink: Send + Sync + 'static {
    /// The sink's name in logs, metrics and readiness. Must be unique within a worker.
    fn name(&self) -> &'static str;

    /// Writes a batch of at least one result. Returns one answer per result, in order.
    ///
    /// Only one write of a sink runs at a time. A wrong number of answers and a panic count as a [`SinkError`].
    ///
    /// # Errors
    /// [`SinkError`] if it is not known that the batch is stored. Its results are offered again after a pause.
    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>>;

    /// Tells that a task was copied to be tried again, or is a dead letter, after the broker has confirmed the copy. Not
    /// every such task is told: the worker may end before, and the broker has dead letters of its own. Must not block. The
    /// default does nothing.
    fn ended_without_result(&self, kind: &str, task_id: &str, is_dead: bool) {
        let _ = (kind, task_id, is_dead);
    }

    /// The attributes that the spans of its writes have besides the engine's, such as `db.system.name`. The default has none.
    fn span_attributes(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Works in the background, beside the writes. The default does nothing.
    ///
    /// It starts when the worker consumes, and is told to [stop](SinkContext::stopping) after the last write. It is
    /// dropped if the worker stops waiting, and started again after a panic.
    fn background<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, ()> {
        let _ = context;
        std::future::ready(()).boxed()
    }
}
