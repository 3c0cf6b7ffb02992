//! The row of a reading in the table of readings.

use std::sync::{Arc, LazyLock};

use garenne_readings::{NO_CALIBRATION, StoredReading};

use crate::reading_row::ReadingRow;

static NO_VERSION: LazyLock<Arc<str>> = LazyLock::new(|| NO_CALIBRATION.into());

/// The row of a reading. `derived_from` is that of [`ReadingRow`].
pub(super) fn row(reading: &StoredReading, derived_from: Option<[(Arc<str>, f64); 2]>) -> ReadingRow {
    let version = || Arc::clone(reading.calibration.as_ref().unwrap_or(&NO_VERSION));
    ReadingRow {
        device: Arc::clone(&reading.device),
        metric: Arc::clone(&reading.metric),
        time: reading.time.into(),
        value: reading.value,
        unit: reading.unit.map(|unit| unit.symbol()),
        raw: reading.raw,
        raw_unit: reading.sent_unit.map(|unit| unit.symbol()),
        calibration: reading.raw.map(|_| version()),
        quality: reading.quality.iter().map(Into::into).collect(),
        derived_from,
        counter: reading.counter,
        sent_counter: reading.sent_counter,
    }
}
