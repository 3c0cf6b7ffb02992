//! The layout of a recording as given by the user, in a TOML file or by flags.

use std::collections::BTreeMap;
use std::path::Path;

use garenne_common::config::parse_toml;
use garenne_common::exit::{Exit, Failure};
use jiff::tz::Offset;
use serde::Deserialize;

use super::civil_time;

/// The layout of a recording. Fields that are not set are detected.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mapping {
    /// The column delimiter.
    pub delimiter: Option<char>,
    /// Whether numbers have a decimal comma.
    pub decimal_comma: Option<bool>,
    /// Codes of missing values; `None` to detect them.
    pub missing: Option<Vec<String>>,
    /// Headings of the columns with the time, in the order of the format.
    pub time: Vec<String>,
    /// Format of the time in `strftime` notation; several columns are joined by one space.
    pub time_format: Option<String>,
    /// UTC offset of times without one, such as `+01:00`; `None` for UTC.
    pub utc_offset: Option<String>,
    /// The device of all rows.
    pub device: Option<String>,
    /// Heading of the column with the device.
    pub device_column: Option<String>,
    /// The columns with values, by heading. If it is not empty, other columns are ignored.
    pub columns: BTreeMap<String, Column>,
}

/// A column with values.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Column {
    /// The metric; `None` for the heading.
    pub metric: Option<String>,
    /// The unit, a symbol of the SenML registry.
    pub unit: Option<String>,
    /// Factor of the values.
    pub scale: Option<f64>,
    /// Added to the scaled value.
    pub offset: Option<f64>,
}

impl Mapping {
    /// Reads a mapping file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let refused = |problem: String| {
            Failure::new(Exit::Usage, format!("map {} is invalid: {problem}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        parse_toml(&text).map_err(refused)
    }

    /// The UTC offset of times without one.
    ///
    /// # Errors
    /// It is not an offset.
    pub fn zone(&self) -> Result<Offset, String> {
        match &self.utc_offset {
            None => Ok(Offset::UTC),
            Some(text) => civil_time::offset(text.trim())
                .ok_or_else(|| format!("utc_offset {text:?} is not an offset such as +01:00 or Z")),
        }
    }
}
