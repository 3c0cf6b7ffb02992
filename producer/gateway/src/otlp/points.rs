//! Data points as readings.

use std::collections::BTreeMap;

use garenne_protocol::{
    quoted,
    sensor::{
        BadField, BadRecord, Fault, KeyedValues, Limits, Reading, Record, SentCounter, TimeUnit, Timestamp,
        Unit, parse::check_unit,
    },
};

use super::{
    message::{ExportRequest, KeyValue, Metric, NO_RECORDED_VALUE, NumberPoint},
    scalar::{CUMULATIVE, DELTA, NO_FLAGS},
    unit::unit,
};
use crate::left_out::Notes;
use crate::series_name::{check_keys, check_text, fit, labels};

/// Attributes that name the device, in order of preference.
const DEVICE: [&str; 4] = ["device.id", "host.name", "service.instance.id", "service.name"];
/// Longest metric name with its attributes, in bytes. Each reading copies and hashes them.
const MAX_SERIES: usize = 4096;
/// The field with the time of a point.
const TIME: &str = "time_unix_nano";
/// The code of points that are distributions.
const NOT_NUMERIC: &str = "not-numeric";
/// Most reasons that an answer has.
const MAX_REASONS: usize = 3;

/// Data points that cannot be readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    pub(super) points: usize,
    reasons: Vec<String>,
    /// The points by the code of the reason.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    has_more: bool,
}

impl Rejected {
    pub(crate) fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// Rejects points of a metric.
    pub(crate) fn add(&mut self, metric: &str, points: usize, code: &'static str, reason: &str) {
        if points == 0 {
            return;
        }
        self.points += points;
        *self.counts.entry(code).or_default() += points as u64;
        let reason = format!("metric {}: {reason}", quoted(metric));
        if self.reasons.contains(&reason) {
            return;
        }
        if self.reasons.len() < MAX_REASONS {
            self.reasons.push(reason);
        } else {
            self.has_more = true;
        }
    }

    /// The reasons, for people.
    pub(crate) fn message(&self) -> String {
        let more = if self.has_more { "; and others" } else { "" };
        format!("{} data points are not stored: {}{more}", self.points, self.reasons.join("; "))
    }
}

impl Notes for Rejected {}

/// What the points of a metric have in common.
#[derive(Clone, Copy)]
struct Series<'a> {
    metric: &'a str,
    /// The end of the readings' metrics.
    suffix: &'static str,
    unit: Option<Unit>,
    /// The unit as it was sent.
    symbol: &'a str,
    /// Whether the values are those of a cumulative counter.
    is_counter: bool,
    /// The device of points that do not name their own.
    device: Option<&'a str>,
}

/// The readings of a request.
struct Converter<'l> {
    now: Timestamp,
    limits: &'l Limits,
    records: Vec<Record>,
    rejected: Rejected,
    values: KeyedValues,
}

/// The records of all gauges and sums, and the data points that cannot be readings.
pub(super) fn records(request: ExportRequest, now: Timestamp, limits: &Limits) -> (Vec<Record>, Rejected) {
    let mut converter = Converter {
        now,
        limits,
        records: Vec::new(),
        rejected: Rejected::default(),
        values: KeyedValues::default(),
    };
    for resource in request.resource_metrics {
        let attributes = resource.resource.unwrap_or_default().attributes;
        let device = device_of(&attributes).map(|(_, device)| device);
        for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
            converter.metric(&metric, device.as_deref());
        }
    }
    (converter.records, converter.rejected)
}

/// The attribute that names the device, and the name.
fn device_of(attributes: &[KeyValue]) -> Option<(&'static str, String)> {
    DEVICE.into_iter().find_map(|key| {
        let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
        Some((key, attribute.text().filter(|name| !name.trim().is_empty())?))
    })
}

impl Converter<'_> {
    fn metric(&mut self, metric: &Metric, device: Option<&str>) {
        let gauge = Series {
            metric: &metric.name,
            suffix: "",
            unit: unit(&metric.unit),
            symbol: &metric.unit,
            is_counter: false,
            device,
        };
        for (distribution, kind) in [
            (&metric.histogram, "a histogram"),
            (&metric.exponential_histogram, "an exponential histogram"),
            (&metric.summary, "a summary"),
        ] {
            let points = distribution.as_ref().map_or(0, |it| it.data_points.len());
            self.rejected.add(&metric.name, points, NOT_NUMERIC, &format!("{kind} has no single value"));
        }
        if let Some(points) = &metric.gauge {
            self.points(&points.data_points, gauge);
        }
        if let Some(sum) = &metric.sum {
            match sum.aggregation_temporality {
                CUMULATIVE => {
                    self.points(&sum.data_points, Series { is_counter: sum.is_monotonic, ..gauge });
                }
                // Kept apart from the same metric's cumulative values, which an exporter with another setting sends.
                DELTA => self.points(&sum.data_points, Series { suffix: ",temporality=delta", ..gauge }),
                _ => {
                    let reason = "the sum has no aggregation temporality";
                    self.rejected.add(
                        &metric.name,
                        sum.data_points.len(),
                        Fault::MissingField.code(),
                        reason,
                    );
                }
            }
        }
    }

    fn points(&mut self, points: &[NumberPoint], series: Series<'_>) {
        for point in points.iter().filter(|point| point.flags & NO_RECORDED_VALUE == 0) {
            match self.reading(point, series) {
                Ok(reading) => self.add(series.metric, reading),
                Err(error) => {
                    let BadRecord { field, message, code, .. } = error.in_record(0);
                    let reason = if field == TIME { format!("{field}: {message}") } else { message };
                    self.rejected.add(series.metric, 1, code.code(), &reason);
                }
            }
        }
    }

    fn reading(&self, point: &NumberPoint, series: Series<'_>) -> Result<Reading, BadField> {
        let Series { metric: name, suffix, unit, symbol, is_counter, device } = series;
        if name.trim().is_empty() {
            return Err(missing("it has no name"));
        }
        if point.flags & NO_FLAGS != 0 {
            return Err(Fault::WrongType.in_field("flags", "the flags of a point are no number"));
        }
        check_text("unit", symbol)?;
        let own = device_of(&point.attributes);
        let (device_key, text) = match &own {
            Some((key, own)) => (Some(*key), own.as_str()),
            None => (None, device.ok_or_else(|| missing(format!("no attribute {}", DEVICE.join(", "))))?),
        };
        check_text("device", text)?;
        let device = fit(text);
        let value = point
            .as_double
            .or(point.as_int.map(|value| value as f64))
            .ok_or_else(|| missing("a point has no value"))?;
        if !value.is_finite() {
            return Err(Fault::NotFinite.in_field("value", "a value is not finite"));
        }
        let series = series_name(name, &point.attributes, device_key, suffix)?;
        check_text("metric", &series)?;
        let metric = fit(&series);
        check_unit("unit", unit, &metric)?;
        if point.time_unix_nano == 0 {
            return Err(missing("a point has no time_unix_nano"));
        }
        let ticks = i64::try_from(point.time_unix_nano);
        let ticks = ticks.map_err(|_| Fault::BadTime.in_field(TIME, "no number of nanoseconds"))?;
        let ticks = (ticks, TimeUnit::Nanoseconds);
        let time = self.limits.unix_time(TIME, ticks, self.now, |unit| unit.to_string())?;
        let counter =
            is_counter.then(|| Box::new(SentCounter { start: start(point), ..SentCounter::default() }));
        Ok(Reading { device, metric, value, unit, counter, time })
    }

    /// Adds a reading, unless the request has it already.
    fn add(&mut self, name: &str, reading: Reading) {
        match self.values.add(&reading) {
            Ok(true) => self.records.push(Record { reading, id: None, time_assumed: false }),
            Ok(false) => {}
            Err(_) => {
                let device = quoted(&reading.device);
                let reason =
                    format!("device {device} has two values of it at one time, in other scopes or resources");
                self.rejected.add(name, 1, Fault::Duplicate.code(), &reason);
            }
        }
    }
}

fn missing(message: impl Into<String>) -> BadField {
    Fault::MissingField.in_field("data_point", message)
}

/// When the sum of a point was zero; `None` if the sender does not know.
fn start(point: &NumberPoint) -> Option<Timestamp> {
    let ticks = i64::try_from(point.start_time_unix_nano).ok().filter(|ticks| *ticks > 0)?;
    TimeUnit::Nanoseconds.time(ticks)
}

/// The name with the attributes of a point, without the one that names the device.
fn series_name(
    name: &str,
    attributes: &[KeyValue],
    device_key: Option<&str>,
    suffix: &str,
) -> Result<String, BadField> {
    let mut pairs = Vec::with_capacity(attributes.len());
    let mut bytes = name.len();
    for attribute in attributes.iter().filter(|attribute| Some(attribute.key.as_str()) != device_key) {
        if attribute.key.is_empty() {
            return Err(Fault::BadName.in_field("attributes", "an attribute has no name"));
        }
        let text = attribute.text().ok_or_else(|| {
            let key = quoted(&attribute.key);
            let message = format!("attribute {key}: expected a text, a number or a boolean");
            Fault::WrongType.in_field("attributes", message)
        })?;
        bytes += attribute.key.len() + text.len() + 2;
        pairs.push((attribute.key.as_str(), text));
    }
    if bytes > MAX_SERIES {
        let message = format!("name and attributes have {bytes} bytes; {MAX_SERIES} are allowed");
        return Err(Fault::OutOfRange.in_field("attributes", message));
    }
    check_keys(("attributes", "attribute"), attributes.iter().map(|attribute| attribute.key.as_str()))?;
    let labels = labels(pairs.iter().map(|(key, text)| (*key, text.as_str())));
    Ok(format!("{name}{labels}{suffix}"))
}
