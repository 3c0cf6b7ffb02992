//! The layout of a recording as given by the user, in a TOML file or by flags.

use std::{collections::BTreeMap, path::Path};

use clap::Args;
use garenne_common::{
    config::parse_toml,
    exit::{Exit, Failure},
};
use jiff::tz::Offset;
use serde::Deserialize;

use super::civil_time;

/// The layout of a recording. Fields that are not set are detected.
#[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Mapping {
    /// Column delimiter: one character, or tab
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub(super) delimiter: Option<char>,
    /// Numbers have a decimal comma: 2,6 is 2.6
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(super) decimal_comma: Option<bool>,
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
    pub(super) time: Vec<String>,
    /// UTC offset of times without one, such as +01:00 [default: UTC]
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true)]
    pub(super) utc_offset: Option<String>,
    /// Device of all rows [default: the column named device, sensor or similar, else the file name]
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// Heading of the column with the device
    #[arg(long, value_name = "HEADING")]
    pub(super) device_column: Option<String>,
    /// The columns with values, by heading. If it is not empty, other columns are ignored.
    #[arg(skip)]
    pub(super) columns: BTreeMap<String, Column>,
}

/// A column with values.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Column {
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
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let refused = |problem: String| {
            Failure::new(Exit::Usage, format!("map {} is invalid: {problem}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        parse_toml(&text).map_err(refused)
    }

    /// This mapping, with the fields of `other` where it has none.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            delimiter: self.delimiter.or(other.delimiter),
            decimal_comma: self.decimal_comma.or(other.decimal_comma),
            missing: self.missing.or(other.missing),
            time_format: self.time_format.or(other.time_format),
            time: if self.time.is_empty() { other.time } else { self.time },
            utc_offset: self.utc_offset.or(other.utc_offset),
            device: self.device.or(other.device),
            device_column: self.device_column.or(other.device_column),
            columns: if self.columns.is_empty() { other.columns } else { self.columns },
        }
    }

    /// The UTC offset of times without one.
    ///
    /// # Errors
    /// It is not an offset.
    pub(super) fn zone(&self) -> Result<Offset, String> {
        match &self.utc_offset {
            None => Ok(Offset::UTC),
            Some(text) => civil_time::offset(text.trim())
                .ok_or_else(|| format!("utc_offset {text:?} is not an offset such as +01:00 or Z")),
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
