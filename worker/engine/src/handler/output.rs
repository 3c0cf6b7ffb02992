//! What a handler gives back.

use std::sync::Arc;

use garenne_protocol::task::NewTask;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use time::OffsetDateTime;

use super::TaskError;

/// The result of a task: JSON, and the readings that a relational sink stores as rows.
#[derive(Clone, Debug)]
pub struct Output {
    /// The JSON, already written.
    pub json: Box<RawValue>,
    /// Readings to store, keyed by device, metric and time.
    pub rows: Vec<ReadingRow>,
    /// The tasks that the handler asked for with [`follow_up`](super::TaskContext::follow_up); filled in
    /// when it has returned.
    pub follow_ups: Vec<NewTask>,
}

/// A reading as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadingRow {
    /// The device.
    pub device: Arc<str>,
    /// The metric.
    pub metric: Arc<str>,
    /// When it was measured; microseconds count.
    pub time: OffsetDateTime,
    /// The calibrated value.
    pub value: f64,
    /// Its unit.
    pub unit: Option<&'static str>,
    /// The value as it arrived; nothing for a derived one, which never contradicts what is stored and gives
    /// way to a measured one.
    pub raw: Option<f64>,
    /// Quality flags.
    pub quality: Vec<&'static str>,
    /// For a derived one: metric and value of the reading of another task that it was made from, of the
    /// same device and time. Where that is stored with another value, this one is not stored.
    pub partner: Option<(Arc<str>, f64)>,
}

impl Output {
    /// Only JSON.
    ///
    /// # Errors
    /// A rejection when the value cannot be written as JSON.
    pub fn json(value: &impl Serialize) -> Result<Self, TaskError> {
        let json = to_raw_value(value).map_err(|e| TaskError::reject(format!("output is no JSON: {e}")))?;
        Ok(Self { json, rows: Vec::new(), follow_ups: Vec::new() })
    }

    /// Adds readings to store.
    #[must_use]
    pub fn with_rows(mut self, rows: Vec<ReadingRow>) -> Self {
        self.rows = rows;
        self
    }
}

/// Anything a handler may return.
pub trait IntoOutput {
    /// Converts.
    ///
    /// # Errors
    /// A rejection when the value cannot be written as JSON.
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
