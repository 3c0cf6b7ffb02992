//! Files of rules in TOML.

use std::path::Path;

use garenne_protocol::sensor::Unit;

/// Reads a file and parses its text. An error is one line: the required content of the file, its path, and the problem.
pub fn load<T>(kind: &str, path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let parsed = text.and_then(|text| parse(&text));
    parsed.map_err(|message| format!("{kind} {}: {message}", path.display()))
}

/// The device of a rule for every device.
pub const EVERY_DEVICE: &str = "*";

/// The default of the field `device`.
pub fn every_device() -> String {
    EVERY_DEVICE.to_owned()
}

/// Refuses infinite numbers and NaN, which TOML can express, for the field `name`.
pub fn finite(name: &str, number: f64) -> Result<f64, String> {
    if number.is_finite() { Ok(number) } else { Err(format!("{name}: {number} is not a finite number")) }
}

/// Refuses what is not a lowest and a highest number, for the field `name`.
pub fn range(name: &str, [low, high]: [f64; 2]) -> Result<[f64; 2], String> {
    match low <= high {
        true => Ok([low, high]),
        false => Err(format!("{name}: [{low}, {high}] is not a range; expected [low, high]")),
    }
}

/// The unit of the field `unit`.
pub fn unit(symbol: Option<&str>) -> Result<Option<Unit>, String> {
    symbol.map(Unit::parse).transpose().map_err(|error| format!("unit: {error}"))
}
