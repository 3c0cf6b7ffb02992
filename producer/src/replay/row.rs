//! Converts rows into readings.

use std::sync::Arc;

use garenne_protocol::sensor::{Reading, Timestamp, Unit};

use super::{
    civil_time::{CivilTime, civil, epoch},
    fields,
    layout::{Device, Layout, Notation, Shape, skipped},
    number::{self, Cell},
};

/// The content of a row.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) readings: Vec<Reading>,
    /// Number of missing values.
    pub(super) missing: u64,
    /// Problems of the row.
    pub(super) faults: Vec<String>,
    /// Whether it is a blank line, a comment, or only delimiters.
    pub(super) blank: bool,
}

/// Longest device or metric, in bytes.
const MAX_NAME: usize = 128;

impl Layout {
    /// Parses one line after the header.
    pub(super) fn row(&self, line: &str) -> Row {
        self.parse(line).unwrap_or_else(|fault| Row { faults: vec![fault], ..Row::default() })
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The problem, if the row has no readings because of it.
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
        let time = self.time(&time_texts).ok_or_else(|| format!("no time in {:?}", joined(&time_texts)))?;
        let device: Arc<str> = match &self.device {
            Device::Fixed(name) => Arc::clone(name),
            Device::Column(index) => {
                name(cell(&fields, *index)).map_err(|problem| format!("device {problem}"))?
            }
        };
        let mut row = Row::default();
        match &self.shape {
            Shape::Wide(metrics) => {
                for metric in metrics {
                    let text = cell(&fields, metric.index);
                    match self.numbers.cell(text) {
                        Cell::Missing => row.missing += 1,
                        Cell::Text => row.faults.push(format!(
                            "column {:?}: {:?} is not a number",
                            self.headings[metric.index],
                            short(text)
                        )),
                        Cell::Number(number) => row.readings.push(Reading {
                            device: Arc::clone(&device),
                            metric: Arc::clone(&metric.name),
                            value: number * metric.scale + metric.offset,
                            unit: metric.unit,
                            time,
                        }),
                    }
                }
            }
            Shape::Long { metric, value, unit } => {
                let metric = name(cell(&fields, *metric)).map_err(|problem| format!("metric {problem}"))?;
                let symbol = unit.map(|index| cell(&fields, index)).filter(|symbol| !symbol.is_empty());
                let unit = symbol.map(Unit::parse).transpose().map_err(|error| error.to_string())?;
                let text = cell(&fields, *value);
                match self.numbers.cell(text) {
                    Cell::Missing => row.missing += 1,
                    Cell::Text => return Err(format!("{:?} is not a number", short(text))),
                    Cell::Number(value) => row.readings.push(Reading { device, metric, value, unit, time }),
                }
            }
        }
        Ok(row)
    }

    /// The instant in the texts of the time columns.
    fn time(&self, texts: &[&str]) -> Option<Timestamp> {
        match self.time.notation {
            Notation::Epoch => number::parse(texts[0], self.numbers.decimal_comma).and_then(epoch),
            Notation::Parts => {
                let mut parts = [0_u32; 6];
                for (part, text) in parts.iter_mut().zip(texts) {
                    *part = text.parse::<f64>().ok().filter(|n| *n >= 0.0)? as u32;
                }
                let [year, month, day, hour, minute, second] = parts;
                let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
                civil(&text, self.order)?.instant(self.zone)
            }
            Notation::Text => match &self.format {
                Some(format) => format.read(&texts.join(" "), self.zone),
                None => {
                    let times: Option<Vec<_>> = texts.iter().map(|text| civil(text, self.order)).collect();
                    times?.into_iter().reduce(CivilTime::joined)?.instant(self.zone)
                }
            },
        }
    }

    /// Number of columns that a row must have. A shorter row is invalid, for example because the logger lost power
    /// while writing it.
    fn min_columns(&self) -> usize {
        let time = self.time.indexes.iter().copied().max().unwrap_or(0);
        let device = if let Device::Column(index) = self.device { index } else { 0 };
        let values = match &self.shape {
            Shape::Wide(metrics) => metrics.last().map_or(0, |metric| metric.index),
            Shape::Long { metric, value, unit } => (*metric).max(*value).max(unit.unwrap_or(0)),
        };
        time.max(device).max(values) + 1
    }
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

fn name(text: &str) -> Result<Arc<str>, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > MAX_NAME || text.chars().any(char::is_control) {
        let text = short(text);
        return Err(format!("{text:?} is longer than {MAX_NAME} bytes or contains a control character"));
    }
    Ok(text.into())
}
