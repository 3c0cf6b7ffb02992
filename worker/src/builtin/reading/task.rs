//! `reading.process` as a task: the payload is exactly what the gateway accepts.

use std::{sync::Arc, time::Duration};

use garenne_protocol::sensor::{Fault, Limits, Record, Timestamp, readings_from};
use time::OffsetDateTime;

use super::{
    Calibration, Stored, derive, process,
    together::{Joint, Together},
};
use garenne::{
    handler::{ContentType, Output, Payload, ReadingRow, TaskContext, TaskError, Unreadable},
    worker::WorkerBuilder,
};

/// The readings of one task: one plain object, an array of them, or a SenML pack.
pub struct Readings(pub(super) Vec<Record>);

impl Payload for Readings {
    const KIND: &'static str = "reading.process";

    fn read(content_type: ContentType, body: &[u8]) -> Result<Self, Unreadable> {
        readings_from(content_type.as_str(), body, now()?).map(Self).map_err(|bad| match bad.code {
            Fault::Malformed => Unreadable::Malformed(bad.to_string()),
            _ => Unreadable::Invalid(bad.to_string()),
        })
    }
}

/// What a worker allows beyond `max_clock_skew`: clocks of different hosts differ, and what a gateway has receipted must
/// not be refused here.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// Refuses readings whose time is too far ahead: other publishers than the gateway may send any time.
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

fn now() -> Result<Timestamp, Unreadable> {
    let micros = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
    let now = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_micros(micros).ok());
    now.ok_or_else(|| Unreadable::Invalid("this machine's clock is out of bounds".into()))
}

/// Adds the kind, with this calibration. A reading whose time is more than `max_clock_skew` and a minute ahead is a
/// dead letter with reason `invalid-payload`; a `max_clock_skew` of 0 sets no limit.
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
            if processed.readings.iter().any(derive::takes_part)
                && let Some((records, place)) = cx.batch_records()
            {
                let together = records.known(|bodies| Together::read(bodies, &calibration));
                for Joint { value, partner } in together.of(place) {
                    rows.push(row(value, Some(partner.clone()))?);
                    processed.derived.push(value.clone());
                }
            }
            Ok(Output::json(&processed)?.with_rows(rows))
        }
    })
}

fn row(stored: &Stored, partner: Option<(Arc<str>, f64)>) -> Result<ReadingRow, TaskError> {
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
