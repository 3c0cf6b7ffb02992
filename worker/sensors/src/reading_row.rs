//! Readings as rows of a database: what the handlers of readings give to the sink that stores them.

use std::sync::Arc;

use garenne::Output;
use garenne_protocol::sensor::{Counter, SentCounter};
use time::OffsetDateTime;

/// A sensor reading, as stored by the Postgres sink. Device, metric and time identify it.
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

/// The rows of a handler's output.
pub trait ReadingRows {
    /// The readings to store.
    fn rows(&self) -> &[ReadingRow];

    /// Sets the readings to store.
    #[must_use]
    fn with_rows(self, rows: Vec<ReadingRow>) -> Self;
}

impl ReadingRows for Output {
    fn rows(&self) -> &[ReadingRow] {
        self.extension::<Vec<ReadingRow>>().map_or(&[], Vec::as_slice)
    }

    fn with_rows(self, rows: Vec<ReadingRow>) -> Self {
        self.with_extension(rows)
    }
}
