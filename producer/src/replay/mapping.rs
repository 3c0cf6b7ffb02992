//! What a user says of a recording, in a TOML file or by flags.

use std::collections::BTreeMap;
use std::path::Path;

use garenne_common::config::parse_toml;
use garenne_common::exit::{Exit, Failure};
use serde::Deserialize;
use time::UtcOffset;

use super::civil_time;

/// How to read a recording; what is not said is found out from the file itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mapping {
    /// Between columns: one character.
    pub delimiter: Option<char>,
    /// Whether `2,6` is two and six tenths.
    pub decimal_comma: Option<bool>,
    /// Codes for a missing value; given, none is guessed.
    pub missing: Option<Vec<String>>,
    /// Headings of the columns that make up the time, in the order the format has them.
    pub time: Vec<String>,
    /// Format of the time in the notation of `strftime`; columns are joined by one space.
    pub time_format: Option<String>,
    /// Offset of times that have none, such as `+01:00`; UTC when not given.
    pub utc_offset: Option<String>,
    /// The device of every row.
    pub device: Option<String>,
    /// Heading of the column that names the device.
    pub device_column: Option<String>,
    /// What the columns measure, by heading; given, other columns are left out.
    pub columns: BTreeMap<String, Column>,
}

/// One column.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Column {
    /// The metric; the heading when not given.
    pub metric: Option<String>,
    /// The unit by the SenML registry.
    pub unit: Option<String>,
    /// Multiplies the number.
    pub scale: Option<f64>,
    /// Is added after that.
    pub offset: Option<f64>,
}

impl Mapping {
    /// Reads a mapping file.
    ///
    /// # Errors
    /// It cannot be read, or says something that nothing understands.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let refused = |problem: String| {
            Failure::new(Exit::Usage, format!("map {} cannot be used: {problem}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        parse_toml(&text).map_err(refused)
    }

    /// The offset of times that have none.
    ///
    /// # Errors
    /// It is none.
    pub fn zone(&self) -> Result<UtcOffset, String> {
        match &self.utc_offset {
            None => Ok(UtcOffset::UTC),
            Some(text) => civil_time::offset(text.trim())
                .ok_or_else(|| format!("utc_offset {text:?} is no offset such as +01:00 or Z")),
        }
    }
}
