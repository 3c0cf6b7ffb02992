//! Where results go. A task is acked only once every sink accepted its result.

mod health;
pub mod results;
mod sink_buffer;
pub mod stdout;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use garenne_protocol::task::{Envelope, Kind, TaskId, TraceContext};
use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::handler::Output;

pub(crate) use health::SinkMetrics;
pub(crate) use sink_buffer::{SinkBuffer, SinkItem};

/// A finished task on its way to the sinks.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The task.
    pub envelope: Arc<Envelope>,
    /// The worker that ran it.
    pub worker: Arc<str>,
    /// When the attempt began.
    pub started_at: SystemTime,
    /// How long it ran.
    pub took: Duration,
    /// What it gave.
    pub output: Output,
    /// The trace it belongs to, for sinks that tell others of it.
    pub trace: Option<TraceContext>,
}

/// The result as others read it.
#[derive(Serialize)]
struct Line<'a> {
    task_id: &'a str,
    kind: &'a str,
    attempt: u32,
    worker: &'a str,
    started_at: String,
    duration_ms: f64,
    output: &'a RawValue,
}

impl Finished {
    /// Which attempt it was, from 1.
    pub fn attempt(&self) -> u32 {
        self.envelope.attempt + 1
    }

    /// How long it ran, milliseconds.
    pub fn duration_ms(&self) -> f64 {
        (self.took.as_secs_f64() * 1e6).round() / 1e3
    }

    /// The result as one JSON object, without a line end.
    pub fn to_json(&self) -> Vec<u8> {
        let started_at = OffsetDateTime::from(self.started_at).format(&Rfc3339);
        serde_json::to_vec(&Line {
            task_id: self.envelope.id.as_str(),
            kind: self.envelope.kind.as_str(),
            attempt: self.attempt(),
            worker: &self.worker,
            started_at: started_at.expect("a year of four digits"),
            duration_ms: self.duration_ms(),
            output: &self.output.json,
        })
        .expect("text, numbers and JSON that is already written")
    }
}

/// What a sink says of one result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is stored, now or already.
    Stored,
    /// It is stored, and these tasks follow from it. Offered again, it gives the same ones.
    StoredAnd(Vec<Start>),
    /// It contradicts what is stored: a dead letter with reason `conflict`.
    Conflict(String),
    /// It can never be stored, such as text with a NUL in Postgres: a dead letter with reason `rejected`.
    Refused(String),
}

/// A task that a sink wants started: published like a handler's follow-ups, before the ack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its id: the same whenever it is asked for.
    pub id: TaskId,
    /// The kind.
    pub kind: Kind,
    /// The payload, JSON.
    pub body: Vec<u8>,
}

impl Accepted {
    /// The word of two sinks on one result.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Conflict(detail), _) | (_, Self::Conflict(detail)) => Self::Conflict(detail),
            (Self::Refused(detail), _) | (_, Self::Refused(detail)) => Self::Refused(detail),
            (Self::Stored, other) => other,
            (word, Self::Stored) => word,
            (Self::StoredAnd(mut starts), Self::StoredAnd(more)) => {
                starts.extend(more);
                Self::StoredAnd(starts)
            }
        }
    }
}

/// A sink that cannot take anything right now. The batch is offered again; meanwhile the prefetch
/// fills and the broker keeps the rest.
#[derive(Clone, Debug, Error)]
#[error("sink {sink} is away: {detail}")]
pub struct SinkError {
    /// The sink.
    pub sink: &'static str,
    /// What happened.
    pub detail: String,
}

/// Stores results. Writing the same result twice must have the effect of writing it once.
pub trait Sink: Send + Sync + 'static {
    /// The name in logs, metrics and readiness; each sink of a worker has another one.
    fn name(&self) -> &'static str;

    /// Writes a batch and answers for each result, in order. An answer for more or fewer results, and a panic,
    /// count as an error: the worker is not ready and the batch is offered again.
    ///
    /// # Errors
    /// [`SinkError`] when nothing of the batch is known to be stored; it will be offered again.
    fn write<'a>(&'a self, batch: &'a [Finished]) -> BoxFuture<'a, Result<Vec<Accepted>, SinkError>>;
}
