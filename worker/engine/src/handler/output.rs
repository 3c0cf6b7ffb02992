//! The output of a handler.

use std::sync::Arc;

use garenne_protocol::{
    sensor::{Counter, SentCounter},
    task::{ContentType, DeadReason, NewTask},
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use time::OffsetDateTime;

use super::TaskError;

/// The result of a task.
///
/// Handlers may return any [`Serialize`] type instead; see [`IntoOutput`]. `Output` itself is for results with
/// [`rows`](Self::rows).
#[derive(Clone, Debug)]
pub struct Output {
    /// The result as serialized JSON. It is what sinks store and what replies contain.
    pub json: Box<RawValue>,
    /// Readings that the Postgres sink stores as rows. Device, metric and time identify a reading.
    pub rows: Vec<ReadingRow>,
    /// The tasks that the handler requested with [`follow_up`](super::TaskContext::follow_up). Set by the worker
    /// after the handler has returned; what a handler writes here is discarded.
    pub follow_ups: Vec<NewTask>,
    /// What the handler refuses of the payload.
    pub refused: Option<RefusedPart>,
}

/// What a handler refuses of a payload whose other parts it accepts. It becomes a dead letter of its own, which is
/// confirmed before the task is acked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPart {
    /// Why.
    pub reason: DeadReason,
    /// The same for people.
    pub error: String,
    /// The codes that `garenne_records_refused_total{door="amqp"}` counts.
    pub codes: Vec<&'static str>,
    /// The body of the dead letter. A task that runs it again must have no second effect.
    pub payload: Vec<u8>,
    /// The content type of the body; [`None`] for the task's.
    pub content_type: Option<ContentType>,
}

/// A sensor reading, as stored by the Postgres sink.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadingRow {
    /// The device that measured it.
    pub device: Arc<str>,
    /// The metric, such as `temperature`.
    pub metric: Arc<str>,
    /// When it was measured, stored with microseconds.
    pub time: OffsetDateTime,
    /// The calibrated value.
    pub value: f64,
    /// The unit of [`value`](Self::value).
    pub unit: Option<&'static str>,
    /// The value before calibration. [`None`] for a derived reading, which never conflicts with a stored one and
    /// is replaced by a measured one.
    pub raw: Option<f64>,
    /// The unit of [`raw`](Self::raw); [`None`] if the sender gave none. With it, `raw` is what makes a reading the same
    /// as a stored one.
    pub raw_unit: Option<&'static str>,
    /// The version of the calibration that [`value`](Self::value) was computed with. [`None`] for a derived reading.
    pub calibration: Option<Arc<str>>,
    /// Quality flags.
    pub quality: Vec<&'static str>,
    /// For a derived reading: metrics and values of the two readings that it was computed from, of the same device and
    /// time. If one of them is stored with another value, the derived one is not stored.
    pub derived_from: Option<[(Arc<str>, f64); 2]>,
    /// For a reading of a cumulative counter: how consumption follows from its values. Stored with the series.
    pub counter: Option<Counter>,
    /// What the sender says of the counter, in the unit of [`raw`](Self::raw). Its start time is stored with the reading, the
    /// rest with the series.
    pub sent_counter: Option<SentCounter>,
}

impl Output {
    /// An output of JSON only.
    ///
    /// # Errors
    /// A [rejection](TaskError::reject) if `value` cannot be serialized as JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, TaskError> {
        let json = to_raw_value(value)
            .map_err(|error| TaskError::reject(format!("the output cannot be serialized: {error}")))?;
        Ok(Self { json, rows: Vec::new(), follow_ups: Vec::new(), refused: None })
    }

    /// Sets the readings to store.
    #[must_use]
    pub fn with_rows(self, rows: Vec<ReadingRow>) -> Self {
        Self { rows, ..self }
    }
}

/// A type that a handler can return: [`Output`], or any [`Serialize`] type, which becomes the output's JSON.
pub trait IntoOutput {
    /// Converts the value into an output.
    ///
    /// # Errors
    /// A [rejection](TaskError::reject) if the value cannot be serialized as JSON.
    fn into_output(self) -> Result<Output, TaskError>;
}

impl IntoOutput for Output {
    fn into_output(self) -> Result<Output, TaskError> {
        Ok(self)
    }
}

impl<T: Serialize> IntoOutput for T {
    fn into_output(self) -> Result<Output, TaskError> {
        Output::json(&self)
    }
}
