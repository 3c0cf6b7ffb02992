//! `reading.process` as a task.

use std::{sync::Arc, time::Duration};

use garenne_protocol::sensor::{Limits, Record};
use time::OffsetDateTime;

use super::{
    Calibration, StoredReading,
    batch_derivations::{BatchDerivations, JointValue},
    derive,
    payload::now,
    process,
};
use garenne::{
    handler::{Output, ReadingRow, TaskContext, TaskError},
    worker::WorkerBuilder,
};

pub use super::payload::Readings;

/// Allowance beyond `max_clock_skew`. The clocks of hosts differ, and a worker must not refuse a reading for
/// which a gateway has sent a receipt.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// Refuses readings whose time is too far ahead. The gateway checks this too, but other publishers may not.
fn check_times(records: &[Record], limits: &Limits) -> Result<(), TaskError> {
    if limits.max_ahead.is_none() {
        return Ok(());
    }
    let now = now()?;
    records
        .iter()
        .enumerate()
        .try_for_each(|(index, record)| limits.check_time(index, "time", record.reading.time, now))
        .map_err(TaskError::invalid)
}

/// Registers the kind with a calibration. A task with a reading whose time is ahead by more than the setting
/// `max_clock_skew` and a minute becomes a dead letter with reason `invalid-payload`.
pub fn register(builder: WorkerBuilder, calibration: Calibration, max_clock_skew: Duration) -> WorkerBuilder {
    let calibration = Arc::new(calibration);
    let max_ahead = (!max_clock_skew.is_zero()).then(|| max_clock_skew.saturating_add(CLOCK_DIFFERENCE));
    let limits = Limits { max_ahead, ..Limits::default() };
    builder.handle(move |cx: TaskContext, Readings(records): Readings| {
        let calibration = Arc::clone(&calibration);
        async move {
            check_times(&records, &limits)?;
            let mut processed = process(&records, &calibration);
            let own = processed.readings.iter().chain(&processed.derived);
            let mut rows = own.map(|stored| row(stored, None)).collect::<Result<Vec<_>, _>>()?;
            if processed.readings.iter().any(derive::is_input)
                && let Some((records, index)) = cx.batch_records()
            {
                let derivations = records.derived(|bodies| BatchDerivations::derive(bodies, &calibration));
                for JointValue { value, partner } in derivations.of_record(index) {
                    rows.push(row(value, Some(partner.clone()))?);
                    processed.derived.push(value.clone());
                }
            }
            Ok(Output::json(&processed)?.with_rows(rows))
        }
    })
}

fn row(stored: &StoredReading, partner: Option<(Arc<str>, f64)>) -> Result<ReadingRow, TaskError> {
    let nanos = i128::from(stored.time.as_micros()) * 1000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(TaskError::reject)?;
    Ok(ReadingRow {
        device: Arc::clone(&stored.device),
        metric: Arc::clone(&stored.metric),
        time,
        value: stored.value,
        unit: stored.unit.map(|unit| unit.symbol()),
        raw: stored.raw,
        quality: stored.quality.iter().map(|flag| flag.as_str()).collect(),
        partner,
    })
}
