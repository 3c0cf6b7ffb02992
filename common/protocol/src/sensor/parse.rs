//! Parses and validates request bodies into readings.
//!
//! The gateway parses a body before it accepts the request, and the worker parses the same bytes again with the
//! same code, so the worker can process what the gateway accepted. A body is read in one pass without an
//! intermediate tree: fields borrow from the body until they are validated.

use std::sync::Arc;
use std::time::Duration;

use super::fault::{BadField, BadRecord, Fault};
use super::lenient;
use super::reading::Reading;
use super::senml::{Base, Fields, Resolved, Value, name};
use super::{SentCounter, TimeUnit, Timestamp, Unit};
use crate::quoted;

mod counter;
mod document;
mod field_name;
mod object;
mod scalar;

pub use document::{Form, readings_in, sift_readings};
use object::Plain;

/// Limits of one body. Its total size is not among them: the receiver limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of records. Default 10,000.
    pub records: usize,
    /// How far ahead of `now` a reading's time may be. Default unlimited.
    pub max_ahead: Option<Duration>,
    /// The earliest time that a reading may have. Default unlimited.
    pub min_time: Option<Timestamp>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { records: 10_000, max_ahead: None, min_time: None }
    }
}

impl Limits {
    /// Maximum size of a device or metric name and of a record's id, in bytes. Task ids have the same limit.
    pub const TEXT_BYTES: usize = 128;

    /// The default limits with the settings `max_clock_skew` (0 for no limit) and `min_time`.
    pub fn of_times(max_clock_skew: Duration, min_time: Timestamp) -> Self {
        let max_ahead = Some(max_clock_skew).filter(|skew| !skew.is_zero());
        Self { max_ahead, min_time: Some(min_time), ..Self::default() }
    }

    /// Refuses a time that is further ahead of `now` than [`Limits::max_ahead`], or before [`Limits::min_time`]. Every
    /// time between is allowed, because a sensor may have been offline.
    ///
    /// # Errors
    /// [`Fault::ClockSkew`] or [`Fault::BeforeMinTime`], with the time and the limit.
    pub fn check_time(&self, field: &'static str, time: Timestamp, now: Timestamp) -> Result<(), BadField> {
        self.check_read_time(field, (time, None), now)
    }

    /// As [`Limits::check_time`], of a time that may have been read from a whole number. The text guesses its unit.
    ///
    /// # Errors
    /// As [`Limits::check_time`].
    pub fn check_read_time(
        &self,
        field: &'static str,
        (time, number): (Timestamp, Option<i64>),
        now: Timestamp,
    ) -> Result<(), BadField> {
        let Some((fault, problem)) = self.problem_of(time, now) else { return Ok(()) };
        let is_at_epoch = time.as_micros().unsigned_abs() <= 86_400_000_000;
        let hint = match number {
            Some(number) => self.hint_for(number, None, now, |unit| unit.to_string()),
            None if fault == Fault::BeforeMinTime && is_at_epoch => UNSET_CLOCK.to_owned(),
            None => String::new(),
        };
        Err(fault.in_field(field, format!("{time} is {problem}{hint}")))
    }

    /// The time of a whole number of `unit`s since 1970.
    ///
    /// # Errors
    /// As [`Limits::check_time`], or [`Fault::BadTime`] outside the years 0000 to 9999. The text suggests the unit that
    /// was probably meant, as `option` writes it.
    pub fn unix_time(
        &self,
        field: &'static str,
        (ticks, unit): (i64, TimeUnit),
        now: Timestamp,
        option: impl Fn(TimeUnit) -> String,
    ) -> Result<Timestamp, BadField> {
        let (fault, problem) = match unit.time(ticks) {
            None => (Fault::BadTime, "outside the years 0000 to 9999".to_owned()),
            Some(time) => match self.problem_of(time, now) {
                None => return Ok(time),
                Some((fault, problem)) => (fault, format!("{time}, {problem}")),
            },
        };
        let hint = self.hint_for(ticks, Some(unit), now, option);
        Err(fault.in_field(field, format!("{ticks} as {unit} is {problem}{hint}")))
    }

    /// What may be wrong with a Unix time that is out of bounds: its unit, or the sender's clock. Empty if unknown.
    /// `given` is the unit that it was read in, if it is known.
    fn hint_for(
        &self,
        ticks: i64,
        given: Option<TimeUnit>,
        now: Timestamp,
        option: impl Fn(TimeUnit) -> String,
    ) -> String {
        // A unit makes a difference of a factor of 1000, so that a year is near enough.
        let latest = now.plus_seconds(365.0 * 86_400.0).unwrap_or(now);
        let is_plausible =
            |time: Timestamp| time <= latest && time >= self.min_time.unwrap_or(Timestamp::DEFAULT_MIN);
        match TimeUnit::likely(ticks, is_plausible) {
            Some(unit) if given == Some(unit) => String::new(),
            Some(unit) => format!("; did you mean {}?", option(unit)),
            None if self.min_time.is_some() && (-86_400..=86_400).contains(&ticks) => UNSET_CLOCK.to_owned(),
            None => String::new(),
        }
    }

    fn problem_of(&self, time: Timestamp, now: Timestamp) -> Option<(Fault, String)> {
        if let Some(min_time) = self.min_time.filter(|min_time| time < *min_time) {
            return Some((Fault::BeforeMinTime, format!("before min_time ({min_time})")));
        }
        let allowed = self.max_ahead?;
        let ahead = time.as_micros().saturating_sub(now.as_micros());
        if u128::try_from(ahead).unwrap_or(0) <= allowed.as_micros() {
            return None;
        }
        let allowed = humantime::format_duration(allowed);
        Some((Fault::ClockSkew, format!("more than {allowed} ahead of the local clock, {now}")))
    }
}

/// A hint for a time near 1970.
const UNSET_CLOCK: &str = "; is the sender's clock set?";

/// A parsed record.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The reading.
    pub reading: Reading,
    /// The sender's id of the record: the field `id` of a plain reading. SenML has none.
    pub id: Option<String>,
    /// Whether the reading's time depends on `now`. If so, its key does not identify it: the same bytes parsed
    /// later give another time. Deduplicate by task id instead.
    pub time_assumed: bool,
}

/// The records of a body by position, and what is left out of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sifted {
    /// By position. `None` for a record that is refused, or that has only base fields. Behind them are the sums that SenML
    /// records have beside a value.
    pub slots: Vec<Option<Record>>,
    /// Records that are refused, in the order of their positions.
    pub refused: Vec<BadRecord>,
    /// Fields that are left out of records that are kept.
    pub notes: Vec<BadRecord>,
}

/// Parses all records of a body with the default limits.
///
/// `content_type` is a media type, with or without parameters:
/// - `application/json`, also if empty: an object or an array, plain or SenML. The fields of the first record
///   decide which.
/// - `application/senml+json`: a SenML pack.
/// - `application/x-ndjson`, `application/jsonl`: one JSON document per line.
///
/// Absent times are `now`; relative times are relative to `now`.
///
/// # Errors
/// The first error in the body, with the record's index.
pub fn readings_from(content_type: &str, body: &[u8], now: Timestamp) -> Result<Vec<Record>, BadRecord> {
    readings_in(Form::of(content_type)?, body, now, &Limits::default())
}

/// A cache of the last 8 distinct names. A body usually has one device and a few metrics, so comparing with 8
/// names is cheaper than hashing. A body of distinct names only needs no more memory than its readings.
#[derive(Default)]
struct Names {
    recent: [Option<Arc<str>>; 8],
    oldest: usize,
}

impl Names {
    /// The name, shared with an earlier equal one if it is still cached.
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.recent.iter().flatten().find(|known| &***known == name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        self.recent[self.oldest] = Some(new.clone());
        self.oldest = (self.oldest + 1) % self.recent.len();
        new
    }
}

/// Converts the records of a body to readings.
struct Converter<'l> {
    names: Names,
    now: Timestamp,
    limits: &'l Limits,
}

impl Converter<'_> {
    fn plain(&mut self, plain: Plain<'_>) -> Result<Record, BadField> {
        let missing = |field: &'static str| Fault::MissingField.in_field(field, "required field is missing");
        let device = plain.device.ok_or_else(|| missing("device"))?;
        let metric = plain.metric.ok_or_else(|| missing("metric"))?;
        check_name("device", &device)?;
        check_name("metric", &metric)?;
        let unit = plain.unit.map(|symbol| unit("unit", &symbol)).transpose()?;
        check_unit("unit", unit, &metric)?;
        if let Some(time) = plain.time {
            self.limits.check_time("time", time, self.now)?;
        }
        let id = plain.id.map(|id| checked_id(&id)).transpose()?;
        let reading = Reading {
            device: self.names.shared(&device),
            metric: self.names.shared(&metric),
            value: plain.value.ok_or_else(|| missing("value"))?,
            unit,
            counter: plain.counter.map(Box::new),
            time: plain.time.unwrap_or(self.now),
        };
        Ok(Record { reading, id, time_assumed: plain.time.is_none() })
    }

    /// The records of the value and of the sum. Without a value the sum is the only record; both are `None` if there are only
    /// base fields. A sum that cannot be a reading does not take the value with it.
    fn senml(&mut self, fields: Fields<'_>, base: &mut Base) -> Result<SenmlRecords, BadField> {
        let unit_field = if fields.u.is_some() { "u" } else { "bu" };
        let time_field = if fields.t.is_some() { "t" } else { "bt" };
        let Some(resolved) = base.resolve(fields, self.now)? else { return Ok((None, None)) };
        let value = number(&resolved)?;
        self.limits.check_time(time_field, resolved.time, self.now)?;
        let unit = match resolved.unit.as_deref() {
            Some(symbol) => Some(unit(unit_field, symbol)?),
            None => matches!(resolved.value, Some(Value::Bool(_))).then(|| Unit::get("/")).flatten(),
        };
        let (device, metric) = name::split(&resolved.name);
        let metric = metric.unwrap_or_else(|| unit.map_or("value", Unit::quantity));
        for part in [device, metric] {
            check_length("n", part)?;
        }
        check_unit(unit_field, unit, metric)?;
        let device = self.names.shared(device);
        let mut record = |metric: &str, value, unit, counter| {
            let metric = self.names.shared(metric);
            let reading =
                Reading { device: Arc::clone(&device), metric, value, unit, counter, time: resolved.time };
            Record { reading, id: None, time_assumed: resolved.relative }
        };
        let value = value.map(|value| record(metric, value, unit, None));
        let sum = resolved.sum.map(|sum| {
            let sum = sum?;
            let metric = format!("{metric}{SUM_SUFFIX}");
            check_length("n", &metric)?;
            let (sum, unit) = match unit.and_then(|unit| unit.times_seconds(sum)) {
                Some((sum, unit)) => (sum, Some(unit)),
                None => (sum, None),
            };
            if !sum.is_finite() {
                return Err(Fault::OutOfRange.in_field("s", "exceeds the range of a double in its unit"));
            }
            Ok(record(&metric, sum, unit, Some(Box::new(SentCounter::default()))))
        });
        match value {
            Some(value) => Ok((Some(value), sum)),
            None => Ok((sum.transpose()?, None)),
        }
    }
}

/// The record of a SenML record's value, and that of the sum beside it.
type SenmlRecords = (Option<Record>, Option<Result<Record, BadField>>);

/// The end of the metric of a SenML sum, after the metric of the values that it sums.
const SUM_SUFFIX: &str = "_sum";

/// Refuses a device or a metric that is empty, longer than [`Limits::TEXT_BYTES`], has control characters, or begins or
/// ends with white space.
///
/// # Errors
/// [`Fault::BadName`] or [`Fault::OutOfRange`], with the text.
pub fn check_name(field: &'static str, text: &str) -> Result<(), BadField> {
    check_length(field, text)?;
    let bad = |message: &str| Fault::BadName.in_field(field, format!("{}: {message}", quoted(text)));
    if text.is_empty() {
        return Err(bad("must not be empty"));
    }
    if text.chars().any(char::is_control) {
        return Err(bad(match text.contains(lenient::BAD_BYTE) {
            true => "contains a control character or a byte that is not UTF-8",
            false => "contains a control character",
        }));
    }
    if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
        return Err(bad("starts or ends with white space"));
    }
    Ok(())
}

fn checked_id(id: &str) -> Result<String, BadField> {
    check_length("id", id)?;
    if id.is_empty() || id.chars().any(char::is_control) {
        let message = format!("{}: is empty or contains a control character", quoted(id));
        return Err(Fault::BadName.in_field("id", message));
    }
    Ok(id.to_owned())
}

fn check_length(field: &'static str, text: &str) -> Result<(), BadField> {
    let limit = Limits::TEXT_BYTES;
    if text.len() <= limit {
        return Ok(());
    }
    let message = format!("{} is {} bytes long; {limit} are allowed", quoted(text), text.len());
    Err(Fault::OutOfRange.in_field(field, message))
}

fn unit(field: &'static str, symbol: &str) -> Result<Unit, BadField> {
    Unit::parse(symbol).map_err(|error| Fault::UnknownUnit.in_field(field, error.to_string()))
}

/// Refuses a unit that contradicts the metric. Its values would be stored, converted and compared as another quantity.
///
/// # Errors
/// [`Fault::WrongUnit`], with the unit that was probably meant.
pub fn check_unit(field: &'static str, unit: Option<Unit>, metric: &str) -> Result<(), BadField> {
    let Some((unit, meant)) = unit.and_then(|unit| Some((unit, unit.meant_for(metric)?))) else {
        return Ok(());
    };
    let (symbol, description) = (unit.symbol(), unit.description());
    let message = format!(
        "{symbol:?} is the {description}, which does not fit the metric {}; did you mean {:?} ({})?",
        quoted(metric),
        meant.symbol(),
        meant.description()
    );
    Err(Fault::WrongUnit.in_field(field, message))
}

/// The numeric value of a resolved record; `None` if it has only a sum. A boolean is 1 or 0, as in RFC 8428 §12.1 for a
/// switch. Text and data are valid SenML, but cannot be calibrated, compared or averaged. They are refused, not dropped, so
/// that the sender learns of it.
fn number(resolved: &Resolved<'_>) -> Result<Option<f64>, BadField> {
    let refused = |field: &'static str, what: &str| {
        Err(Fault::NotNumeric.in_field(field, format!("{what} is not a numeric value; send v or vb")))
    };
    match &resolved.value {
        Some(Value::Number(number)) => Ok(Some(*number)),
        Some(Value::Bool(flag)) => Ok(Some(f64::from(u8::from(*flag)))),
        Some(Value::Text(text)) => refused("vs", &format!("the string {}", quoted(text))),
        Some(Value::Data(_)) => refused("vd", "data"),
        None => Ok(None),
    }
}

#[cfg(test)]
pub(super) mod tests;
