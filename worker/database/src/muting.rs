//! SQL conditions: which devices a pattern names, and which alarms send no notices.

use crate::tables::Tables;

/// Whether the device `device` is that of `pattern`, or begins with the prefix before its `*`. Both are SQL expressions.
pub fn device_matches(pattern: &str, device: &str) -> String {
    format!(
        "CASE WHEN right({pattern}, 1) = '*' THEN starts_with({device}, left({pattern}, -1)) ELSE {device} = {pattern} END"
    )
}

/// Whether a maintenance window that fulfills `condition` (on `m`) has the device of the alarm `a`.
pub fn has_maintenance(tables: &Tables, condition: &str) -> String {
    let matches = device_matches("m.device", "a.device");
    format!("EXISTS (SELECT FROM {tables}_maintenance AS m WHERE {condition} AND {matches})")
}

/// Whether the alarm `a` is in a maintenance window now.
pub fn is_in_maintenance(tables: &Tables) -> String {
    has_maintenance(tables, "m.starts <= now() AND m.ends > now()")
}

/// Whether the alarm `a` sends no notices now: it is snoozed or in a maintenance window.
pub fn is_muted(tables: &Tables) -> String {
    format!("(coalesce(a.snoozed_until > now(), false) OR {})", is_in_maintenance(tables))
}
