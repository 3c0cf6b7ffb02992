//! The bound of the names in payloads that are no readings. Readings have the same.

use garenne_protocol::sensor::Limits;

/// Refuses a name that is longer than any that is stored. It would be copied into results, queries and errors.
pub(crate) fn check_length(field: &str, name: &str) -> Result<(), String> {
    let (length, most) = (name.len(), Limits::TEXT_BYTES);
    match length <= most {
        true => Ok(()),
        false => Err(format!("{field} has {length} bytes; at most {most} are allowed")),
    }
}
