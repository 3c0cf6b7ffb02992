//! Value parsers that several commands share.

use std::time::Duration;

/// Reads a duration such as `90s`, `1h` or `2d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; expected a duration such as 90s, 1h or 2d"))
}
