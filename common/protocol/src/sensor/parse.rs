//! Bytes to readings: the one place that decides what is acceptable.
//!
//! The gateway calls it before it promises anything and the worker calls it on what arrives, so
//! that what the one accepts the other processes. A body is read once, without an intermediate
//! tree: an object's fields borrow from the body until they are checked.

use std::time::Duration;

use super::fault::{BadRecord, Fault, shown};
use super::reading::Reading;
use super::senml::{Base, Fields, Resolved, Value, name};
use super::{Timestamp, Unit};

mod document;
mod names;
mod object;
mod scalar;

pub use document::Form;
use document::Take;
use names::Names;
use object::Plain;

/// How much one body may hold. The size of the body itself is limited where it is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most records in one body; 10,000.
    pub records: usize,
    /// Most bytes in a device's or a metric's name; 128.
    pub name_bytes: usize,
    /// Most bytes in a record's id; 128, as for a task's.
    pub id_bytes: usize,
    /// How far ahead of `now` a reading's time may be; unlimited unless set.
    pub max_ahead: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { records: 10_000, name_bytes: 128, id_bytes: 128, max_ahead: None }
    }
}

impl Limits {
    /// Refuses a time that is further ahead of `now` than [`Limits::max_ahead`]. Times in the past are always
    /// allowed: a sensor may have been offline.
    ///
    /// # Errors
    /// [`Fault::ClockSkew`], with the time and the limit.
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
            "{time} is more than {} ahead of the clock here, {now}",
            humantime::format_duration(allowed)
        );
        Err(BadRecord::new(index, field, Fault::ClockSkew, message))
    }
}

/// A reading and how it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The reading.
    pub reading: Reading,
    /// The id the sender gave this record: `id` of a plain object. SenML has none.
    pub id: Option<String>,
    /// Whether `now` is part of the reading's time. If so its key says nothing: the same bytes
    /// parsed later give another time, so that what repeats them must key on the task id.
    pub time_assumed: bool,
}

/// Reads every record of a body.
///
/// `content_type` is a media type with or without parameters: `application/json` (also when
/// empty) takes an object or an array, plain or SenML, told apart by the first record's fields;
/// `application/senml+json` takes SenML only; `application/x-ndjson` and `application/jsonl` take
/// one such document a line. `now` is what an absent or relative time is counted from. Limits are
/// the default ones.
///
/// # Errors
/// The first thing that is wrong, with the record's index.
pub fn readings_from(content_type: &str, body: &[u8], now: Timestamp) -> Result<Vec<Record>, BadRecord> {
    readings_within(content_type, body, now, &Limits::default())
}

/// [`readings_from`] with other limits.
///
/// # Errors
/// The first thing that is wrong, with the record's index.
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
/// The first thing that is wrong, with the record's index.
pub fn readings_in(
    form: Form,
    body: &[u8],
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadRecord> {
    // Most bodies are one reading.
    let records = Vec::with_capacity(1);
    let mut collector = Collector { records, base: Base::new(), names: Names::default(), now, limits };
    document::read(form, body, limits.records, &mut collector)?;
    if collector.records.is_empty() {
        let message = "no record in it that measures anything".to_owned();
        return Err(BadRecord::new(0, "body", Fault::Empty, message));
    }
    Ok(collector.records)
}

/// Resolves a SenML pack (RFC 8428 §4.6): every base field applied, relative times counted from `now`, in
/// chronological order; records of one time keep theirs.
///
/// # Errors
/// The first record that is not SenML.
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

impl Take for Pack {
    fn document(&mut self) {
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

/// Takes the records of a document in order and keeps what they share.
struct Collector<'l> {
    records: Vec<Record>,
    base: Base,
    names: Names,
    now: Timestamp,
    limits: &'l Limits,
}

impl Take for Collector<'_> {
    fn document(&mut self) {
        self.base = Base::new();
    }

    fn plain(&mut self, plain: Plain<'_>, index: usize) -> Result<(), BadRecord> {
        let missing = |field: &'static str| {
            BadRecord::new(index, field, Fault::MissingField, "it is required".to_owned())
        };
        let device = plain.device.ok_or_else(|| missing("device"))?;
        let metric = plain.metric.ok_or_else(|| missing("metric"))?;
        self.limited("device", &device, index)?;
        self.limited("metric", &metric, index)?;
        let unit = plain.unit.map(|symbol| unit("unit", &symbol, index)).transpose()?;
        if let Some(time) = plain.time {
            self.limits.check_time(index, "time", time, self.now)?;
        }
        let id = plain.id.map(|id| self.id(&id, index)).transpose()?;
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
        let given_unit = if fields.u.is_some() { "u" } else { "bu" };
        let given_time = if fields.t.is_some() { "t" } else { "bt" };
        let Some(resolved) = self.base.resolve(fields, self.now, index)? else { return Ok(()) };
        let value = number(&resolved, index)?;
        self.limits.check_time(index, given_time, resolved.time, self.now)?;
        let unit = match resolved.unit.as_deref() {
            Some(symbol) => Some(unit(given_unit, symbol, index)?),
            None => matches!(resolved.value, Some(Value::Bool(_))).then(|| Unit::get("/")).flatten(),
        };
        let (device, metric) = name::split(&resolved.name);
        let metric = metric.unwrap_or_else(|| unit.map_or("value", Unit::quantity));
        for part in [device, metric] {
            within(self.limits.name_bytes, "n", part, index)?;
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
    fn limited(&self, field: &'static str, text: &str, index: usize) -> Result<(), BadRecord> {
        within(self.limits.name_bytes, field, text, index)?;
        let bad = |message: &str| {
            BadRecord::new(index, field, Fault::BadName, format!("{}: {message}", shown(text)))
        };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if text.chars().any(char::is_control) {
            return Err(bad("it holds a control character"));
        }
        if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
            return Err(bad("it starts or ends with white space"));
        }
        Ok(())
    }

    fn id(&self, id: &str, index: usize) -> Result<String, BadRecord> {
        within(self.limits.id_bytes, "id", id, index)?;
        if id.is_empty() || id.chars().any(char::is_control) {
            let message = format!("{}: it is empty or holds a control character", shown(id));
            return Err(BadRecord::new(index, "id", Fault::BadName, message));
        }
        Ok(id.to_owned())
    }
}

fn within(limit: usize, field: &'static str, text: &str, index: usize) -> Result<(), BadRecord> {
    if text.len() <= limit {
        return Ok(());
    }
    let message = format!("{} is {} bytes long; {limit} are allowed", shown(text), text.len());
    Err(BadRecord::new(index, field, Fault::OutOfRange, message))
}

fn unit(field: &'static str, symbol: &str, index: usize) -> Result<Unit, BadRecord> {
    if let Some(unit) = Unit::get(symbol) {
        return Ok(unit);
    }
    Unit::parse(symbol).map_err(|error| BadRecord::new(index, field, Fault::UnknownUnit, error.to_string()))
}

/// The number that a resolved record measures; a boolean is 1 or 0, as RFC 8428 §12.1 has it for
/// a switch. Text, data and a bare sum are valid SenML and no readings: there is nothing to
/// calibrate, compare or average, so they are refused rather than dropped.
fn number(resolved: &Resolved<'_>, index: usize) -> Result<f64, BadRecord> {
    let refused = |field, what: &str| {
        Err(BadRecord::new(index, field, Fault::NotNumeric, format!("{what} is no reading; send v or vb")))
    };
    match &resolved.value {
        Some(Value::Number(number)) => Ok(*number),
        Some(Value::Bool(flag)) => Ok(f64::from(u8::from(*flag))),
        Some(Value::Text(text)) => refused("vs", &format!("the string {}", shown(text))),
        Some(Value::Data(_)) => refused("vd", "data"),
        None => refused("s", "a sum without a value"),
    }
}

#[cfg(test)]
mod tests;
