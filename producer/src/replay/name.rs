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

/// The device or the metric (`what`) of a column. The error says how to give the column another one.
pub(super) fn column_name(what: &'static str, heading: &str, name: &str) -> Result<Arc<str>, String> {
    checked_name(what, name).map_err(|problem| {
        let given = if what == "device" { what } else { "name" };
        let shown: String = heading.chars().take(40).collect();
        format!(
            "column {shown:?}: {problem}; give it a {given} in a map: [columns.{heading:?}] {what} = \"NAME\""
        )
    })
}
