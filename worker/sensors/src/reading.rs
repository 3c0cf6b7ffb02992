//! `reading.process`: calibrates readings, flags implausible values and derives further metrics.
//!
//! A pure function of the readings and the calibration. It converts the unit, corrects the value, sets quality
//! flags, and derives metrics from temperature and humidity of the same device and time. It keeps no state;
//! alarm rules, which need earlier readings, are evaluated where readings are stored.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use garenne_protocol::sensor::{Limits, Record};
pub use garenne_readings::{CalibratedReading, Calibration, Flag, derive::is_input_unit};
use garenne_readings::{NO_CALIBRATION, derive};
use schemars::JsonSchema;
use serde::Serialize;

use garenne::{Output, TaskContext, TaskError, TaskOptions, WorkerBuilder};

use crate::reading_row::{ReadingRow, ReadingRows};

mod batch_derivations;
mod contradictions;
mod payload;

use batch_derivations::{BatchDerivations, JointValue};
use contradictions::take_contradictions;
pub use payload::Readings;

/// Allowance beyond `max_clock_skew`. The clocks of hosts differ, and a worker must not refuse a reading for
/// which a gateway has sent a receipt.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

static NO_VERSION: LazyLock<Arc<str>> = LazyLock::new(|| NO_CALIBRATION.into());

/// The result of one task: its readings in order, and the values derived from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Processed {
    /// The readings of the task.
    pub readings: Vec<CalibratedReading>,
    /// Dew point, absolute humidity and heat index for each pair of temperature and humidity of the same device
    /// and time.
    pub derived: Vec<CalibratedReading>,
}

/// Processes the readings of one task. Returns the rows of the readings and of the derived values as well.
pub fn process(records: &[Record], calibration: &Calibration) -> (Processed, Vec<ReadingRow>) {
    let readings: Vec<_> = records.iter().map(|record| calibration.apply(record)).collect();
    let mut rows: Vec<_> = readings.iter().map(|reading| row(reading, None)).collect();
    let mut derived_values = Vec::new();
    for derived in derive::values_with_inputs(&readings) {
        rows.push(row(&derived.value, Some(derived.inputs(&readings))));
        derived_values.push(derived.value);
    }
    (Processed { readings, derived: derived_values }, rows)
}

/// What becomes of the readings of a task that have another value than an earlier one for the same device, metric and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contradictions {
    /// They are refused, and become a dead letter of their own with reason `conflict`. The others are processed.
    Refused,
    /// They are processed. A sink that stores the latest version decides.
    Processed,
}

/// Registers the kind with a calibration. A task with a reading whose time is ahead by more than `limits` allow and a
/// minute, or before them, becomes a dead letter with reason `invalid-payload`.
pub fn register(
    builder: WorkerBuilder,
    calibration: Calibration,
    limits: Limits,
    contradictions: Contradictions,
) -> WorkerBuilder {
    let calibration = Arc::new(calibration);
    let max_ahead = limits.max_ahead.map(|ahead| ahead.saturating_add(CLOCK_DIFFERENCE));
    let limits = Limits { max_ahead, ..limits };
    let handler = move |cx: TaskContext, readings: Readings| {
        let calibration = Arc::clone(&calibration);
        async move {
            let mut records = readings.accepted_at(cx.accepted_at());
            // The gateway checks this too, but other publishers may not.
            let now = payload::now();
            for (index, record) in records.iter().enumerate() {
                limits
                    .check_time("time", record.reading.time, now)
                    .map_err(|error| TaskError::invalid(error.in_record(index)))?;
            }
            let refused = match contradictions {
                Contradictions::Refused => take_contradictions(&mut records),
                Contradictions::Processed => None,
            };
            let (mut processed, mut rows) = process(&records, &calibration);
            if processed.readings.iter().any(derive::is_input)
                && let Some((records, index)) = cx.batch_records()
            {
                let derivations = records.derived(|bodies| BatchDerivations::derive(bodies, &calibration));
                for JointValue { value, inputs } in derivations.of_record(index) {
                    rows.push(row(value, Some(inputs.clone())));
                    processed.derived.push(value.clone());
                }
            }
            Ok::<_, TaskError>(Output::json(&processed)?.with_rows(rows).with_refused(refused))
        }
    };
    builder.handle_with(handler, TaskOptions::short().keyed_by(payload::device))
}

/// The row of a reading. `derived_from` is that of [`ReadingRow`].
fn row(reading: &CalibratedReading, derived_from: Option<[(Arc<str>, f64); 2]>) -> ReadingRow {
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

#[cfg(test)]
mod tests;
