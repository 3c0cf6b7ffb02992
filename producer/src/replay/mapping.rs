//! The layout of a recording as given by the user, in a TOML file or by flags.

use std::{collections::BTreeMap, path::Path};

use clap::Args;
use garenne_common::{
    config::parse_toml,
    exit::{Exit, Failure},
};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::{
    civil_time::{self, DateOrder},
    encoding::Encoding,
    moment,
};

/// The layout of a recording. Fields that are not set are detected.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Mapping {
    /// Encoding of the file [default: detected]
    #[arg(long, value_name = "NAME")]
    pub(super) encoding: Option<Encoding>,
    /// Column delimiter: one character, or tab
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub(super) delimiter: Option<char>,
    /// Numbers have a decimal comma: 2,6 is 2.6, and 1.013 is 1013
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(super) decimal_comma: Option<bool>,
    /// Heading of a column whose numbers have a decimal point: 1.013 is not 1013; repeatable
    #[arg(long = "point-column", value_name = "HEADING")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) point_columns: Vec<String>,
    /// Heading of a column whose numbers have a decimal comma: 1.013 is 1013; repeatable
    #[arg(long = "comma-column", value_name = "HEADING")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) comma_columns: Vec<String>,
    /// Code of a missing value, such as -200; repeatable; none: every number is a value
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub(super) missing: Option<Vec<String>>,
    /// Format of times, in strftime notation such as '%d/%m/%Y %H.%M.%S'
    // Several columns are joined by one space.
    #[arg(long, value_name = "FORMAT")]
    pub(super) time_format: Option<String>,
    /// Heading of a column with the time or a part of it; repeatable
    // In the order of the format.
    #[arg(long = "time-column", value_name = "HEADING")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) time: Vec<String>,
    /// Heading of a column with the fraction of the second, such as ms; none: no column has it
    #[arg(long, value_name = "HEADING")]
    pub(super) time_fraction: Option<String>,
    /// Order of dates such as 01/02/2020 [default: detected]
    #[arg(long, value_name = "ORDER")]
    pub(super) date_order: Option<DateOrder>,
    /// UTC offset of times without one, such as +01:00 [default: UTC]
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true)]
    pub(super) utc_offset: Option<String>,
    /// Time zone of times without an offset, such as Europe/Berlin
    #[arg(long, value_name = "NAME")]
    pub(super) zone: Option<String>,
    /// Device of all rows [default: the column named device, sensor or similar, else the file name]
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// Heading of the column with the device
    #[arg(long, value_name = "HEADING")]
    pub(super) device_column: Option<String>,
    /// Character between device and metric in headings such as roof/temperature; none: a heading is a metric [default: / if
    /// every column with values has it, and nothing else names a device]
    #[arg(long, value_name = "CHAR")]
    pub(super) device_separator: Option<String>,
    /// The columns with values, by heading. If it is not empty, other columns are ignored.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) columns: BTreeMap<String, Column>,
}

/// A column with values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Column {
    /// The device; `None` for that of the row.
    pub(super) device: Option<String>,
    /// The metric; `None` for the heading.
    pub(super) metric: Option<String>,
    /// The unit, a symbol of the SenML registry.
    pub(super) unit: Option<String>,
    /// Factor of the values.
    pub(super) scale: Option<f64>,
    /// Added to the scaled value.
    pub(super) offset: Option<f64>,
}

impl Mapping {
    /// Reads a mapping file.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let refused = |problem: String| {
            Failure::new(Exit::Usage, format!("map {} is invalid: {problem}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        parse_toml(&text).map_err(refused)
    }

    /// This mapping, with the fields of `other` where it has none.
    pub(super) fn or(self, other: Self) -> Self {
        let or = |own: Vec<String>, other: Vec<String>| if own.is_empty() { other } else { own };
        // Each excludes the other, so that a flag replaces either of the map.
        let (utc_offset, zone) = match (self.utc_offset, self.zone) {
            (None, None) => (other.utc_offset, other.zone),
            own => own,
        };
        Self {
            encoding: self.encoding.or(other.encoding),
            delimiter: self.delimiter.or(other.delimiter),
            decimal_comma: self.decimal_comma.or(other.decimal_comma),
            point_columns: or(self.point_columns, other.point_columns),
            comma_columns: or(self.comma_columns, other.comma_columns),
            missing: self.missing.or(other.missing),
            time_format: self.time_format.or(other.time_format),
            time: or(self.time, other.time),
            time_fraction: self.time_fraction.or(other.time_fraction),
            date_order: self.date_order.or(other.date_order),
            utc_offset,
            zone,
            device: self.device.or(other.device),
            device_column: self.device_column.or(other.device_column),
            device_separator: self.device_separator.or(other.device_separator),
            columns: if self.columns.is_empty() { other.columns } else { self.columns },
        }
    }

    /// The time zone of times without an offset. Offset and name exclude each other.
    pub(super) fn time_zone(&self) -> Result<TimeZone, String> {
        match (&self.utc_offset, &self.zone) {
            (None, None) => Ok(TimeZone::UTC),
            (Some(text), None) => civil_time::offset(text.trim()).map(TimeZone::fixed).ok_or_else(|| {
                format!("utc_offset {text:?} is not an offset such as +01:00 or Z; zone takes a name")
            }),
            (None, Some(name)) => moment::zone(name),
            (Some(_), Some(_)) => Err("utc_offset and zone are both given, expected one of them".to_owned()),
        }
    }
}

fn delimiter(text: &str) -> Result<char, String> {
    match (text, text.parse()) {
        ("tab" | "\\t", _) => Ok('\t'),
        (_, Ok(only)) if char::is_ascii(&only) => Ok(only),
        _ => Err("expected one ASCII character, or tab".to_owned()),
    }
}
