//! The layout of a CSV recording: given by the user or detected from its first rows.

use std::sync::Arc;

use garenne_protocol::sensor::Unit;
use jiff::tz::TimeZone;

use super::{
    civil_time::Format,
    fields,
    mapping::{Column, Mapping},
    missing_codes::missing_codes,
    name::{checked_name, column_name},
    number::{MissingCodes, NumberFormat},
    source::SAMPLE_SIZE,
};

mod decimal_signs;
mod dialect;
mod heading_devices;
mod survey;
mod time_columns;

use survey::Survey;
use time_columns::DateEvidence;

pub(super) use dialect::skipped;
pub(super) use time_columns::{Notation, TimeColumns};

/// The layout of a CSV recording.
pub(super) struct Layout {
    pub(super) delimiter: char,
    pub(super) missing: MissingCodes,
    pub(super) headings: Vec<String>,
    /// The format of each column's numbers.
    pub(super) numbers: Vec<NumberFormat>,
    pub(super) has_header: bool,
    pub(super) time: TimeColumns,
    pub(super) format: Option<Format>,
    pub(super) zone: TimeZone,
    pub(super) device: Device,
    pub(super) shape: Shape,
    /// Columns that are empty in all rows from which the layout was detected.
    pub(super) empty: Vec<usize>,
    /// The first row, as an example of its time.
    pub(super) first_row: Vec<String>,
    /// Assumptions to show to the user.
    pub(super) notes: Vec<String>,
}

/// The device of a row.
pub(super) enum Device {
    Fixed(Arc<str>),
    Column(usize),
}

/// How a row contains readings.
pub(super) enum Shape {
    /// One metric per column.
    Wide(Vec<Metric>),
    /// One reading per row, with its metric in a column.
    Long { metric: usize, value: usize, unit: Option<usize> },
}

impl Shape {
    /// The columns with values.
    pub(super) fn value_columns(&self) -> Vec<usize> {
        match self {
            Self::Wide(metrics) => metrics.iter().map(|metric| metric.index).collect(),
            Self::Long { value, .. } => vec![*value],
        }
    }

    /// Whether a reading has the device of its row.
    pub(super) fn uses_device_of_row(&self) -> bool {
        match self {
            Self::Wide(metrics) => metrics.iter().any(|metric| metric.device.is_none()),
            Self::Long { .. } => true,
        }
    }
}

/// A column with values of a metric.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) index: usize,
    /// The device, if it is not that of the row.
    pub(super) device: Option<Arc<str>>,
    pub(super) name: Arc<str>,
    pub(super) unit: Option<Unit>,
    pub(super) scale: f64,
    pub(super) offset: f64,
}

const DEVICES: &[&str] = &[
    "device",
    "device_id",
    "deviceid",
    "sensor",
    "sensor_id",
    "sensorid",
    "station",
    "station_id",
    "node",
    "node_id",
    "host",
    "machine",
    "machine_id",
    "meter",
    "meter_id",
    "location",
    "room",
    "site",
    "mote",
    "mote_id",
    "moteid",
    "id",
];
const METRICS: &[&str] =
    &["metric", "measurement", "parameter", "quantity", "sensor_type", "variable", "field"];
const VALUES: &[&str] = &["value", "reading", "val", "result"];
const UNITS: &[&str] = &["unit", "units", "uom"];

/// The first rows.
pub(super) struct Rows {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    /// The cells of a column that are not empty.
    fn cells(&self, index: usize) -> impl Iterator<Item = &str> {
        self.rows
            .iter()
            .filter_map(move |row| row.get(index))
            .map(|cell| cell.trim())
            .filter(|cell| !cell.is_empty())
    }

    fn heading(&self, index: usize) -> String {
        normalized(&self.headings[index])
    }

    fn named(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| (0..self.headings.len()).find(|&index| self.heading(index) == **name))
    }

    fn exactly(&self, heading: &str) -> Result<usize, String> {
        let heading = one_line(heading);
        self.headings.iter().position(|known| *known == heading).ok_or_else(|| {
            format!("no column has the heading {heading:?}; the columns are {}", self.headings.join(", "))
        })
    }
}

/// A heading on one line: white space in it, such as a line break or a tab, becomes a space.
fn one_line(heading: &str) -> String {
    heading.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Normalizes a heading for comparison: lower case, words joined by underscores.
fn normalized(heading: &str) -> String {
    let words = heading.to_lowercase();
    let words = words.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

impl Layout {
    /// Detects the layout, as far as `mapping` does not give it, from the records of a recording: the first ones decide
    /// about delimiter, header and time, all of them about everything else. `file_device` is the device of a file without
    /// a device column. If a part is unknown, the error says how to give it.
    pub(super) fn detect(
        records: impl IntoIterator<Item = String>,
        mapping: &Mapping,
        file_device: &str,
    ) -> Result<Self, String> {
        let zone = mapping.time_zone()?;
        let format = mapping.time_format.as_deref().map(Format::parse).transpose()?;
        let mut records = records.into_iter().filter(|record| !dialect::skipped(record));
        let mut size = 0;
        let mut sample = Vec::new();
        while size < SAMPLE_SIZE
            && let Some(record) = records.next()
        {
            size += record.len();
            sample.push(record);
        }
        if sample.is_empty() {
            return Err("the file contains no rows".to_owned());
        }
        let delimiter = mapping.delimiter.unwrap_or_else(|| dialect::delimiter(&sample));
        let mut rows: Vec<Vec<String>> =
            sample.iter().filter_map(|record| fields::split(record, delimiter)).collect();
        let has_header = dialect::has_header(&rows);
        let headings: Vec<String> = if has_header {
            rows.remove(0).iter().map(|heading| one_line(heading)).collect()
        } else {
            let width = rows.iter().map(Vec::len).max().unwrap_or(0);
            (1..=width).map(|number| format!("column{number}")).collect()
        };
        if has_header && rows.is_empty() {
            return Err(format!("the file has a header ({}) and no rows", headings.join(", ")));
        }
        let rows = Rows { headings, rows };
        let mut notes = Vec::new();

        let mut time = time_columns::find(&rows, mapping, &mut notes)?;
        let order_open = time.notation == Notation::Text && format.is_none() && mapping.date_order.is_none();
        let dates = order_open.then(|| (time.indexes[0], DateEvidence::new(delimiter)));
        let mut survey = Survey::new(rows.headings.len(), dates);
        rows.rows.iter().for_each(|row| survey.add(row));
        for record in records {
            fields::split(&record, delimiter).iter().for_each(|row| survey.add(row));
        }
        if let Some((_, dates)) = &survey.dates {
            (time.order, time.order_guessed) = dates.order(&mut notes);
        }
        let is_time = |index: usize| {
            time.indexes.contains(&index) || time.fraction.is_some_and(|fraction| fraction.index == index)
        };
        let device = match (&mapping.device, &mapping.device_column) {
            (Some(name), _) => Device::Fixed(checked_name("device", name)?),
            (None, Some(column)) => Device::Column(rows.exactly(column)?),
            (None, None) => match rows.named(DEVICES).filter(|index| !is_time(*index)) {
                Some(index) => Device::Column(index),
                None => Device::Fixed(file_device.into()),
            },
        };
        let used = |index: usize| is_time(index) || matches!(device, Device::Column(at) if at == index);
        let shape = shape(&rows, &survey, mapping, &device, used, &mut notes)?;
        let values = shape.value_columns();
        let signs: Vec<_> = values.iter().map(|&index| (index, &survey.columns[index].signs)).collect();
        let numbers = decimal_signs::formats(&rows, &signs, mapping, delimiter, &mut notes)?;
        let missing = match &mapping.missing {
            Some(codes) => MissingCodes::of(codes.iter().map(String::as_str)),
            None => {
                let low: Vec<_> =
                    values.iter().map(|&index| (numbers[index], &survey.columns[index].low)).collect();
                let numbers = missing_codes(&low);
                for code in &numbers {
                    notes
                        .push(format!("{code} is treated as a missing value (--missing none disables this)"));
                }
                MissingCodes::of_numbers(numbers)
            }
        };
        let is_empty = |&index: &usize| survey.columns[index].filled == 0 && !used(index);
        let empty = (0..rows.headings.len()).filter(is_empty).collect();
        let device = match device {
            Device::Column(index) if !shape.uses_device_of_row() => {
                let heading = &rows.headings[index];
                notes.push(format!("column {heading:?} is not read: every other column has its own device"));
                Device::Fixed(file_device.into())
            }
            device => device,
        };
        Ok(Self {
            delimiter,
            missing,
            empty,
            first_row: rows.rows.first().cloned().unwrap_or_default(),
            headings: rows.headings,
            numbers,
            has_header,
            time,
            format,
            zone,
            device,
            shape,
            notes,
        })
    }
}

fn shape(
    rows: &Rows,
    survey: &Survey,
    mapping: &Mapping,
    device: &Device,
    used: impl Fn(usize) -> bool,
    notes: &mut Vec<String>,
) -> Result<Shape, String> {
    if !mapping.columns.is_empty() {
        return mapped(rows, mapping).map(Shape::Wide);
    }
    let free = |names: &[&str]| rows.named(names).filter(|index| !used(*index));
    if let (Some(metric), Some(value)) = (free(METRICS), free(VALUES)) {
        return Ok(Shape::Long { metric, value, unit: free(UNITS) });
    }
    let mut columns = Vec::new();
    let mut left_out = Vec::new();
    for (index, heading) in rows.headings.iter().enumerate().filter(|(index, _)| !used(*index)) {
        let content = &survey.columns[index];
        match heading.as_str() {
            // Such as a column that comes from a trailing delimiter.
            _ if content.filled == 0 => {}
            "" => left_out.push(format!("number {}", index + 1)),
            _ if content.is_numeric() => columns.push(index),
            _ if content.numbers > 0 => {
                left_out
                    .push(format!("{heading} ({} of {} cells are numbers)", content.numbers, content.filled));
            }
            _ => left_out.push(heading.clone()),
        }
    }
    if !left_out.is_empty() {
        notes.push(format!(
            "columns without numbers or without a heading are ignored: {}",
            left_out.join(", ")
        ));
    }
    if columns.is_empty() {
        return Err(format!("no column contains numbers; the columns are {}", rows.headings.join(", ")));
    }
    heading_devices::metrics(rows, &columns, mapping, device, notes).map(Shape::Wide)
}

fn mapped(rows: &Rows, mapping: &Mapping) -> Result<Vec<Metric>, String> {
    if let Some(separator) = mapping.device_separator.as_deref().filter(|separator| *separator != "none") {
        return Err(format!(
            "device_separator {separator:?} and columns are both given, expected one of them; a column has a field device"
        ));
    }
    let column = |(heading, column): (&String, &Column)| {
        let unit = column
            .unit
            .as_deref()
            .map(|symbol| Unit::parse(symbol).map_err(|error| format!("column {heading:?}: {error}")))
            .transpose()?;
        let name = column.metric.as_deref().unwrap_or(heading);
        if let Some((unit, meant)) = unit.and_then(|unit| Some((unit, unit.meant_for(name)?))) {
            let (symbol, description, meant) = (unit.symbol(), unit.description(), meant.symbol());
            return Err(format!(
                "column {heading:?}: unit {symbol:?} is the {description}, did you mean {meant:?}?"
            ));
        }
        Ok(Metric {
            index: rows.exactly(heading)?,
            device: column
                .device
                .as_deref()
                .map(|device| column_name("device", heading, device))
                .transpose()?,
            name: column_name("metric", heading, name)?,
            unit,
            scale: column.scale.unwrap_or(1.0),
            offset: column.offset.unwrap_or(0.0),
        })
    };
    let mut metrics: Vec<Metric> = mapping.columns.iter().map(column).collect::<Result<_, String>>()?;
    metrics.sort_by_key(|metric| metric.index);
    Ok(metrics)
}

#[cfg(test)]
mod tests;
