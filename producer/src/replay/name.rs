//! Names of devices and metrics, checked before they are sent: a worker makes a dead letter of a reading with another.

use std::sync::Arc;

use garenne_protocol::sensor::parse::check_name;

/// A name that a worker takes. `what` is `device` or `metric`. The error has the name and the problem.
pub(super) fn checked_name(what: &'static str, name: &str) -> Result<Arc<str>, String> {
    check_name(what, name).map_err(|bad| format!("{what} {}", bad.in_record(0).message))?;
    if name.contains(char::REPLACEMENT_CHARACTER) {
        return Err(format!("{what} {name:?} has a byte that is not in the encoding of the file"));
    }
    Ok(name.into())
}

/// The device of a column. The error says how to give the column a device.
pub(super) fn check_device(heading: &str, device: &str) -> Result<Arc<str>, String> {
    checked_name("device", device).map_err(|problem| {
        format!(
            "column {:?}: {problem}; give it a device in a map: [columns.{heading:?}] device = \"NAME\"",
            short(heading)
        )
    })
}

/// The metric of a column. The error says how to give the metric another name.
pub(super) fn check_metric(heading: &str, metric: &str) -> Result<Arc<str>, String> {
    checked_name("metric", metric).map_err(|problem| {
        format!(
            "column {:?}: {problem}; give it a name in a map: [columns.{heading:?}] metric = \"NAME\"",
            short(heading)
        )
    })
}

fn short(heading: &str) -> String {
    heading.chars().take(40).collect()
}
