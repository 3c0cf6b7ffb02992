//! Converts rows into readings.

use std::sync::Arc;

use garenne_protocol::sensor::{Reading, Timestamp};
use jiff::{SignedDuration, civil::Date};

use super::{
    civil_time::{CivilTime, civil_of_columns, epoch},
    fields,
    heading::unit_of,
    layout::{Device, Layout, Notation, Shape, skipped},
    moment::{Moment, NoMoment},
    name::checked_name,
    number::{self, Cell},
};

/// The content of a row.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) readings: Vec<Reading>,
    /// Number of missing values.
    pub(super) missing: u64,
    pub(super) faults: Vec<String>,
    /// Whether it is a blank line, a comment, or only delimiters.
    pub(super) blank: bool,
    /// Set if the local time of the readings occurs twice; they have the first time.
    pub(super) repeated: Option<RepeatedTime>,
    /// A column with a value that is not read, because it was empty when the layout was detected.
    pub(super) unread: Option<usize>,
    /// The device that the row names, or that of the file.
    pub(super) device: Option<Arc<str>>,
    /// A remark about the row.
    pub(super) note: Option<String>,
}

/// The second time of a local time that occurs twice.
#[derive(Debug, PartialEq)]
pub(super) struct RepeatedTime {
    pub(super) second: Timestamp,
    /// The local time and its zone, for a message.
    pub(super) text: String,
}

impl Row {
    /// The time of the readings.
    pub(super) fn time(&self) -> Option<Timestamp> {
        self.readings.first().map(|reading| reading.time)
    }

    /// Changes the time of all readings.
    pub(super) fn set_time(&mut self, time: Timestamp) {
        self.readings.iter_mut().for_each(|reading| reading.time = time);
    }
}

impl Layout {
    /// Parses one line after the header.
    pub(super) fn row(&self, line: &str) -> Row {
        self.parse(line).unwrap_or_else(|fault| Row { faults: vec![fault], ..Row::default() })
    }

    /// Parses a line. The error is the problem because of which the row has no readings.
    fn parse(&self, line: &str) -> Result<Row, String> {
        if skipped(line) {
            return Ok(Row { blank: true, ..Row::default() });
        }
        let fields = fields::split(line, self.delimiter).ok_or("a quote is not closed")?;
        if fields.iter().all(|field| field.trim().is_empty()) {
            return Ok(Row { blank: true, ..Row::default() });
        }
        let expected = self.headings.len();
        let surplus = fields.iter().skip(expected).any(|field| !field.trim().is_empty());
        if surplus || fields.len() < self.min_columns() {
            return Err(format!("{} columns where {expected} are expected", fields.len()));
        }
        let time_texts: Vec<&str> = self.time.indexes.iter().map(|&index| cell(&fields, index)).collect();
        let moment = self.moment(&time_texts).map_err(|problem| self.no_moment(problem, &time_texts))?;
        let moment = self.with_fraction(moment, &fields)?;
        let time = moment.first();
        let device: Arc<str> = match &self.device {
            Device::Fixed(name) => Arc::clone(name),
            Device::Column(index) => checked_name("device", cell(&fields, *index))?,
        };
        let unread = self.empty.iter().copied().find(|&index| !number::is_missing(cell(&fields, index)));
        let mut row = Row { unread, device: Some(Arc::clone(&device)), ..Row::default() };
        if let Moment::Repeated { second, .. } = moment {
            let text = format!("{:?} in {}", joined(&time_texts), self.zone_name());
            row.repeated = Some(RepeatedTime { second, text });
        }
        match &self.shape {
            Shape::Wide(metrics) => {
                for metric in metrics {
                    let text = cell(&fields, metric.index);
                    let refused =
                        |problem: String| format!("column {:?}: {problem}", self.headings[metric.index]);
                    match self.missing.cell(text, self.numbers[metric.index]) {
                        Cell::Missing => row.missing += 1,
                        Cell::Text => row.faults.push(refused(not_a_number(text))),
                        Cell::Ambiguous { decimal, thousands } => {
                            row.faults.push(refused(ambiguous(text, decimal, thousands)));
                        }
                        Cell::Number(number) => {
                            let value = number * metric.scale + metric.offset;
                            if !value.is_finite() {
                                row.faults.push(refused(format!("{:?} is out of range", short(text))));
                                continue;
                            }
                            row.readings.push(Reading {
                                device: Arc::clone(metric.device.as_ref().unwrap_or(&device)),
                                metric: Arc::clone(&metric.name),
                                value,
                                unit: metric.unit,
                                counter: None,
                                time,
                            });
                        }
                    }
                }
            }
            Shape::Long { metric, value, unit } => {
                let metric = checked_name("metric", cell(&fields, *metric))?;
                let symbol = unit.map(|index| cell(&fields, index)).filter(|symbol| !symbol.is_empty());
                let unit = symbol.map(|symbol| unit_of(symbol, &metric)).transpose()?;
                let text = cell(&fields, *value);
                match self.missing.cell(text, self.numbers[*value]) {
                    Cell::Missing => row.missing += 1,
                    Cell::Text => return Err(not_a_number(text)),
                    Cell::Ambiguous { decimal, thousands } => {
                        return Err(ambiguous(text, decimal, thousands));
                    }
                    Cell::Number(value) => {
                        row.readings.push(Reading { device, metric, value, unit, counter: None, time });
                    }
                }
            }
        }
        Ok(row)
    }

    /// The moment in the texts of the time columns.
    fn moment(&self, texts: &[&str]) -> Result<Moment, NoMoment> {
        let time = match self.time.notation {
            Notation::Epoch if number::is_shortened(texts[0]) => return Err(NoMoment::Shortened),
            Notation::Epoch => {
                let time = number::decimal(texts[0]).and_then(epoch);
                return time.map(Moment::At).ok_or(NoMoment::NotATime);
            }
            Notation::Parts => parts(texts),
            Notation::Text => match &self.format {
                Some(format) => return format.moment(&texts.join(" "), &self.zone),
                None => civil_of_columns(texts, self.time.order),
            },
        };
        time.ok_or(NoMoment::NotATime)?.moment(&self.zone)
    }

    /// Adds the fraction of the second, if a column has it.
    fn with_fraction(&self, moment: Moment, fields: &[String]) -> Result<Moment, String> {
        let Some(fraction) = self.time.fraction else { return Ok(moment) };
        let text = cell(fields, fraction.index);
        let exact = fraction.seconds(text).and_then(|seconds| moment.plus_seconds(seconds));
        let heading = &self.headings[fraction.index];
        exact.ok_or_else(|| format!("column {heading:?}: {:?} is not a fraction of a second", short(text)))
    }

    fn no_moment(&self, problem: NoMoment, texts: &[&str]) -> String {
        let text = joined(texts);
        match problem {
            NoMoment::NotATime => format!("no time in {text:?}"),
            NoMoment::Shortened => format!(
                "the time {text:?} was shortened, as spreadsheets do; export the column as a number with all digits"
            ),
            NoMoment::Skipped { minutes } => {
                let zone = self.zone_name();
                format!("{text:?} does not exist in {zone}: the clock is set forward {minutes} min over it")
            }
        }
    }

    /// The text of the first row's time, and the time.
    pub(super) fn example(&self) -> Option<(String, Timestamp)> {
        let texts: Vec<&str> = self.time.indexes.iter().map(|&index| cell(&self.first_row, index)).collect();
        let moment = self.with_fraction(self.moment(&texts).ok()?, &self.first_row).ok()?;
        Some((joined(&texts), moment.first()))
    }

    /// The name of the zone, for a message.
    fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("a fixed offset")
    }

    /// Whether each row has one metric, named in a column.
    pub(super) fn has_one_metric_per_row(&self) -> bool {
        matches!(self.shape, Shape::Long { .. })
    }

    /// Number of columns that a row must have. A shorter row is invalid, for example because the logger lost power
    /// while writing it.
    fn min_columns(&self) -> usize {
        let fraction = self.time.fraction.map(|fraction| fraction.index);
        let time = self.time.indexes.iter().copied().chain(fraction).max().unwrap_or(0);
        let device = if let Device::Column(index) = self.device { index } else { 0 };
        let values = match &self.shape {
            Shape::Wide(metrics) => metrics.last().map_or(0, |metric| metric.index),
            Shape::Long { metric, value, unit } => (*metric).max(*value).max(unit.unwrap_or(0)),
        };
        time.max(device).max(values) + 1
    }
}

/// A time from year, month and day, and optionally hour, minute and second. The last part may have a fraction.
fn parts(texts: &[&str]) -> Option<CivilTime> {
    let numbers: Vec<f64> = texts.iter().map(|text| number::decimal(text)).collect::<Option<_>>()?;
    let whole = &numbers[..numbers.len().saturating_sub(1).max(3)];
    if whole.iter().any(|number| number.fract() != 0.0) {
        return None;
    }
    let date = Date::new(numbers[0] as i16, numbers[1] as i8, numbers[2] as i8).ok()?;
    let limits = [(3600.0, 24.0), (60.0, 59.0), (1.0, 60.0)];
    let mut seconds = 0.0;
    for (number, (unit, limit)) in numbers[3..].iter().zip(limits) {
        if !(0.0..limit + 1.0).contains(number) {
            return None;
        }
        seconds += number * unit;
    }
    let clock = SignedDuration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= 86_400.0)?;
    Some(CivilTime::of(date, clock))
}

fn not_a_number(text: &str) -> String {
    format!("{:?} is not a number", short(text))
}

fn ambiguous(text: &str, decimal: f64, thousands: f64) -> String {
    let text = short(text);
    format!("{text:?} is {decimal} or {thousands} (--point-column or --comma-column decides)")
}

/// The texts of a row's time, for a message.
fn joined(texts: &[&str]) -> String {
    texts.iter().map(|text| short(text)).collect::<Vec<_>>().join(" ")
}

fn cell(fields: &[String], index: usize) -> &str {
    fields.get(index).map_or("", |field| field.trim())
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}
