//! Converts rows into readings.

use std::sync::Arc;

use garenne_protocol::sensor::{Reading, Timestamp, Unit};

use super::{
    civil_time::civil,
    fields,
    layout::{Device, Layout, Shape, TimeColumns, from_epoch, skipped},
    number::Cell,
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

impl Row {
    fn fault(text: String) -> Self {
        Self { faults: vec![text], ..Self::default() }
    }
}

/// Longest device or metric, in bytes.
const MAX_NAME: usize = 128;

impl Layout {
    /// Parses one line after the header.
    pub(super) fn row(&self, line: &str) -> Row {
        if skipped(line) {
            return Row { blank: true, ..Row::default() };
        }
        let Some(fields) = fields::split(line, self.delimiter) else {
            return Row::fault("a quote is not closed".to_owned());
        };
        if fields.iter().all(|field| field.trim().is_empty()) {
            return Row { blank: true, ..Row::default() };
        }
        let expected = self.headings.len();
        let surplus = fields.iter().skip(expected).any(|field| !field.trim().is_empty());
        if surplus || fields.len() < self.min_columns() {
            return Row::fault(format!("{} columns where {expected} are expected", fields.len()));
        }
        let Some(time) = self.time(&fields) else {
            return Row::fault(format!("no time in {:?}", self.time_text(&fields)));
        };
        let device: Arc<str> = match &self.device {
            Device::Fixed(name) => Arc::clone(name),
            Device::Column(index) => match name(cell(&fields, *index)) {
                Ok(name) => name,
                Err(problem) => return Row::fault(format!("device {problem}")),
            },
        };
        match &self.shape {
            Shape::Wide(_) => self.wide(&fields, &device, time),
            Shape::Long { metric, value, unit } => self.long(&fields, [*metric, *value], *unit, device, time),
        }
    }

    fn wide(&self, fields: &[String], device: &Arc<str>, time: Timestamp) -> Row {
        let Shape::Wide(metrics) = &self.shape else { return Row::default() };
        let mut row = Row::default();
        for metric in metrics {
            let text = cell(fields, metric.index);
            match self.numbers.cell(text) {
                Cell::Missing => row.missing += 1,
                Cell::Text => row.faults.push(format!(
                    "column {:?}: {:?} is not a number",
                    self.headings[metric.index],
                    short(text)
                )),
                Cell::Number(number) => row.readings.push(Reading {
                    device: Arc::clone(device),
                    metric: Arc::clone(&metric.name),
                    value: number * metric.scale + metric.offset,
                    unit: metric.unit,
                    time,
                }),
            }
        }
        row
    }

    fn long(
        &self,
        fields: &[String],
        [metric, value]: [usize; 2],
        unit: Option<usize>,
        device: Arc<str>,
        time: Timestamp,
    ) -> Row {
        let metric = match name(cell(fields, metric)) {
            Ok(metric) => metric,
            Err(problem) => return Row::fault(format!("metric {problem}")),
        };
        let symbol = unit.map(|index| cell(fields, index)).filter(|symbol| !symbol.is_empty());
        let unit = match symbol.map(Unit::parse).transpose() {
            Ok(unit) => unit,
            Err(error) => return Row::fault(error.to_string()),
        };
        let text = cell(fields, value);
        match self.numbers.cell(text) {
            Cell::Missing => Row { missing: 1, ..Row::default() },
            Cell::Text => Row::fault(format!("{:?} is not a number", short(text))),
            Cell::Number(value) => {
                Row { readings: vec![Reading { device, metric, value, unit, time }], ..Row::default() }
            }
        }
    }

    fn time(&self, fields: &[String]) -> Option<Timestamp> {
        match &self.time {
            TimeColumns::Epoch(index) => from_epoch(cell(fields, *index), self.numbers.decimal_comma),
            TimeColumns::GatewayContext(indexes) => {
                let mut parts = [0_u32; 6];
                for (part, &index) in parts.iter_mut().zip(indexes) {
                    *part = cell(fields, index).parse::<f64>().ok().filter(|n| *n >= 0.0)? as u32;
                }
                let [year, month, day, hour, minute, second] = parts;
                let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
                civil(&text, self.order)?.instant(self.zone)
            }
            TimeColumns::Text(indexes) => match (&self.format, &indexes[..]) {
                (Some(format), _) => format.read(&self.time_text(fields), self.zone),
                (None, [only]) => civil(cell(fields, *only), self.order)?.instant(self.zone),
                (None, [first, rest @ ..]) => {
                    let first = civil(cell(fields, *first), self.order)?;
                    let joined = rest.iter().try_fold(first, |joined, &index| {
                        Some(joined.joined(civil(cell(fields, index), self.order)?))
                    });
                    joined?.instant(self.zone)
                }
                (None, []) => None,
            },
        }
    }

    fn time_text(&self, fields: &[String]) -> String {
        let indexes = match &self.time {
            TimeColumns::Epoch(index) => std::slice::from_ref(index),
            TimeColumns::Text(indexes) | TimeColumns::GatewayContext(indexes) => indexes,
        };
        indexes.iter().map(|&index| short(cell(fields, index))).collect::<Vec<_>>().join(" ")
    }

    /// Number of columns that a row must have. A shorter row is invalid, for example because the logger lost power
    /// while writing it.
    fn min_columns(&self) -> usize {
        let time = match &self.time {
            TimeColumns::Epoch(index) => *index,
            TimeColumns::Text(indexes) | TimeColumns::GatewayContext(indexes) => {
                indexes.iter().copied().max().unwrap_or(0)
            }
        };
        let device = if let Device::Column(index) = self.device { index } else { 0 };
        let values = match &self.shape {
            Shape::Wide(metrics) => metrics.last().map_or(0, |metric| metric.index),
            Shape::Long { metric, value, unit } => (*metric).max(*value).max(unit.unwrap_or(0)),
        };
        time.max(device).max(values) + 1
    }
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
        return Err(format!(
            "{:?} is longer than {MAX_NAME} bytes or contains a control character",
            short(text)
        ));
    }
    Ok(text.into())
}
