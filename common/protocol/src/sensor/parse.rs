//! Parses and validates request bodies into readings.
//!
//! The gateway parses a body before it accepts the request, and the worker parses the same bytes again with the
//! same code, so the worker can process what the gateway accepted. A body is read in one pass without an
//! intermediate tree: fields borrow from the body until they are validated.

use std::time::Duration;

use super::fault::{BadRecord, Fault, quoted};
use super::reading::Reading;
use super::senml::{Base, Fields, Resolved, Value, name};
use super::{Timestamp, Unit};

mod document;
mod names;
mod object;
mod scalar;

pub use document::Form;
use document::RecordSink;
use names::Names;
use object::Plain;

/// Limits of one body. Its total size is not among them: the receiver limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of records. Default 10,000.
    pub records: usize,
    /// Maximum size of a device or metric name, in bytes. Default 128.
    pub name_bytes: usize,
    /// Maximum size of a record's id, in bytes. Default 128, as for task ids.
    pub id_bytes: usize,
    /// How far ahead of `now` a reading's time may be. Default unlimited.
    pub max_ahead: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { records: 10_000, name_bytes: 128, id_bytes: 128, max_ahead: None }
    }
}

impl Limits {
    /// Refuses a time that is further ahead of `now` than [`Limits::max_ahead`]. Every time in the past is
    /// allowed, because a sensor may have been offline.
    ///
    /// # Errors
    /// [`Fault::ClockSkew`], with the time, the limit and `now`.
    pub fn check_time(
        &self,
        index: usize,
        field: &'static str,
        time: Timestamp,
        now: Timestamp,
    ) -> Result<(), BadRecord> {
        let Some(allowed) = self.max_ahead else { return Ok(()) };
        let ahead = time.as_micros().saturating_sub(now.as_micros());
        if u128::try_from(ahead).unwrap_or(0) <= allowed.as_micros() {
            return Ok(());
        }
        let message = format!(
            "{time} is more than {} ahead of the local clock, {now}",
            humantime::format_duration(allowed)
        );
        Err(BadRecord::new(index, field, Fault::ClockSkew, message))
    }
}

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
    readings_within(content_type, body, now, &Limits::default())
}

/// [`readings_from`] with other limits.
///
/// # Errors
/// The first error in the body, with the record's index.
pub fn readings_within(
    content_type: &str,
    body: &[u8],
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadRecord> {
    readings_in(Form::of(content_type)?, body, now, limits)
}

/// [`readings_within`] for a body whose form is known.
///
/// # Errors
/// The first error in the body, with the record's index.
pub fn readings_in(
    form: Form,
    body: &[u8],
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadRecord> {
    // Most bodies have one reading.
    let records = Vec::with_capacity(1);
    let mut collector = Collector { records, base: Base::new(), names: Names::default(), now, limits };
    document::read(form, body, limits.records, &mut collector)?;
    if collector.records.is_empty() {
        let message = "no record with a value".to_owned();
        return Err(BadRecord::new(0, "body", Fault::Empty, message));
    }
    Ok(collector.records)
}

/// Resolves a SenML pack (RFC 8428 §4.6): applies base fields, makes relative times absolute with `now`, and
/// sorts the records by time; records of equal time keep their order.
///
/// # Errors
/// The first error in the pack, with the record's index.
pub fn resolve_pack(body: &[u8], now: Timestamp) -> Result<Vec<Resolved<'static>>, BadRecord> {
    let mut pack = Pack { records: Vec::new(), base: Base::new(), now };
    document::read(Form::Senml, body, Limits::default().records, &mut pack)?;
    pack.records.sort_by_key(|record| record.time);
    Ok(pack.records)
}

struct Pack {
    records: Vec<Resolved<'static>>,
    base: Base,
    now: Timestamp,
}

impl RecordSink for Pack {
    fn start_document(&mut self) {
        self.base = Base::new();
    }

    fn plain(&mut self, _: Plain<'_>, index: usize) -> Result<(), BadRecord> {
        let message = "a plain reading in a SenML pack".to_owned();
        Err(BadRecord::new(index, "body", Fault::WrongType, message))
    }

    fn senml(&mut self, fields: Fields<'_>, index: usize) -> Result<(), BadRecord> {
        self.records.extend(self.base.resolve(fields, self.now, index)?.map(Resolved::into_owned));
        Ok(())
    }
}

/// Converts the records of a body to readings.
struct Collector<'l> {
    records: Vec<Record>,
    base: Base,
    names: Names,
    now: Timestamp,
    limits: &'l Limits,
}

impl RecordSink for Collector<'_> {
    fn start_document(&mut self) {
        self.base = Base::new();
    }

    fn plain(&mut self, plain: Plain<'_>, index: usize) -> Result<(), BadRecord> {
        let missing = |field: &'static str| {
            BadRecord::new(index, field, Fault::MissingField, "required field is missing".to_owned())
        };
        let device = plain.device.ok_or_else(|| missing("device"))?;
        let metric = plain.metric.ok_or_else(|| missing("metric"))?;
        self.check_name("device", &device, index)?;
        self.check_name("metric", &metric, index)?;
        let unit = plain.unit.map(|symbol| unit("unit", &symbol, index)).transpose()?;
        if let Some(time) = plain.time {
            self.limits.check_time(index, "time", time, self.now)?;
        }
        let id = plain.id.map(|id| self.checked_id(&id, index)).transpose()?;
        let reading = Reading {
            device: self.names.shared(&device),
            metric: self.names.shared(&metric),
            value: plain.value.ok_or_else(|| missing("value"))?,
            unit,
            time: plain.time.unwrap_or(self.now),
        };
        self.records.push(Record { reading, id, time_assumed: plain.time.is_none() });
        Ok(())
    }

    fn senml(&mut self, fields: Fields<'_>, index: usize) -> Result<(), BadRecord> {
        let unit_field = if fields.u.is_some() { "u" } else { "bu" };
        let time_field = if fields.t.is_some() { "t" } else { "bt" };
        let Some(resolved) = self.base.resolve(fields, self.now, index)? else { return Ok(()) };
        let value = number(&resolved, index)?;
        self.limits.check_time(index, time_field, resolved.time, self.now)?;
        let unit = match resolved.unit.as_deref() {
            Some(symbol) => Some(unit(unit_field, symbol, index)?),
            None => matches!(resolved.value, Some(Value::Bool(_))).then(|| Unit::get("/")).flatten(),
        };
        let (device, metric) = name::split(&resolved.name);
        let metric = metric.unwrap_or_else(|| unit.map_or("value", Unit::quantity));
        for part in [device, metric] {
            check_length(self.limits.name_bytes, "n", part, index)?;
        }
        let reading = Reading {
            device: self.names.shared(device),
            metric: self.names.shared(metric),
            value,
            unit,
            time: resolved.time,
        };
        self.records.push(Record { reading, id: None, time_assumed: resolved.relative });
        Ok(())
    }
}

impl Collector<'_> {
    fn check_name(&self, field: &'static str, text: &str, index: usize) -> Result<(), BadRecord> {
        check_length(self.limits.name_bytes, field, text, index)?;
        let bad = |message: &str| {
            BadRecord::new(index, field, Fault::BadName, format!("{}: {message}", quoted(text)))
        };
        if text.is_empty() {
            return Err(bad("must not be empty"));
        }
        if text.chars().any(char::is_control) {
            return Err(bad("contains a control character"));
        }
        if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
            return Err(bad("starts or ends with white space"));
        }
        Ok(())
    }

    fn checked_id(&self, id: &str, index: usize) -> Result<String, BadRecord> {
        check_length(self.limits.id_bytes, "id", id, index)?;
        if id.is_empty() || id.chars().any(char::is_control) {
            let message = format!("{}: is empty or contains a control character", quoted(id));
            return Err(BadRecord::new(index, "id", Fault::BadName, message));
        }
        Ok(id.to_owned())
    }
}

fn check_length(limit: usize, field: &'static str, text: &str, index: usize) -> Result<(), BadRecord> {
    if text.len() <= limit {
        return Ok(());
    }
    let message = format!("{} is {} bytes long; {limit} are allowed", quoted(text), text.len());
    Err(BadRecord::new(index, field, Fault::OutOfRange, message))
}

fn unit(field: &'static str, symbol: &str, index: usize) -> Result<Unit, BadRecord> {
    if let Some(unit) = Unit::get(symbol) {
        return Ok(unit);
    }
    Unit::parse(symbol).map_err(|error| BadRecord::new(index, field, Fault::UnknownUnit, error.to_string()))
}

/// The numeric value of a resolved record. A boolean is 1 or 0, as in RFC 8428 §12.1 for a switch. Text, data
/// and a sum without a value are valid SenML, but cannot be calibrated, compared or averaged. They are refused,
/// not dropped, so that the sender learns of it.
fn number(resolved: &Resolved<'_>, index: usize) -> Result<f64, BadRecord> {
    let refused = |field, what: &str| {
        let message = format!("{what} is not a numeric value; send v or vb");
        Err(BadRecord::new(index, field, Fault::NotNumeric, message))
    };
    match &resolved.value {
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::Bool(flag)) => Ok(f64::from(u8::from(*flag))),
        Some(Value::Text(text)) => refused("vs", &format!("the string {}", quoted(text))),
        Some(Value::Data(_)) => refused("vd", "data"),
        None => refused("s", "a sum without a value"),
    }
}

#[cfg(test)]
mod tests;
