//! Files of rules in TOML.

use std::path::{Path, PathBuf};

use garenne_protocol::sensor::Unit;

/// A file that cannot be used. The message is one line.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {}: {message}", .path.display())]
#[non_exhaustive]
pub struct FileError {
    /// What the file contains.
    pub kind: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The rule or line, the value, and the allowed values.
    pub message: String,
}

/// Reads a file and parses its text.
pub(crate) fn load<T>(
    kind: &'static str,
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, FileError> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let parsed = text.and_then(|text| parse(&text));
    parsed.map_err(|message| FileError { kind, path: path.to_owned(), message })
}

/// The device of a rule for every device.
pub(crate) const EVERY_DEVICE: &str = "*";

/// The default of the field `device`.
pub(crate) fn every_device() -> String {
    EVERY_DEVICE.to_owned()
}

/// Refuses infinite numbers and NaN, which TOML can express, for the field `name`.
pub(crate) fn finite(name: &str, number: f64) -> Result<f64, String> {
    if number.is_finite() { Ok(number) } else { Err(format!("{name}: {number} is not a finite number")) }
}

/// The unit of the field `unit`.
pub(crate) fn unit(symbol: Option<&str>) -> Result<Option<Unit>, String> {
    symbol.map(Unit::parse).transpose().map_err(|error| format!("unit: {error}"))
}
