//! The columns with values of a wide file, and the devices in their headings.
//!
//! The rule:
//! 1. `device_separator` decides. A heading with the separator is a device and a metric, one without it is a metric of the
//!    row's device.
//! 2. Otherwise headings are metrics if a column or the user names the device.
//! 3. Otherwise headings are devices and metrics if all of them have a `/` that is not part of a unit. If some have one and
//!    others have none, nothing tells, and the file is refused.

use std::{collections::BTreeSet, sync::Arc};

use super::{Device, Mapping, Metric, Rows};
use crate::replay::{
    heading::{device_and_heading, is_quantity, metric_and_unit},
    name::column_name,
};

/// Separator of headings, if none is given.
const USUAL: char = '/';
/// Devices that a note names.
const NOTED: usize = 3;

/// The metrics of the columns with values, which are `columns`.
pub(super) fn metrics(
    rows: &Rows,
    columns: &[usize],
    mapping: &Mapping,
    device: &Device,
    notes: &mut Vec<String>,
) -> Result<Vec<Metric>, String> {
    let headings: Vec<&str> = columns.iter().map(|&index| rows.headings[index].as_str()).collect();
    let separator = match given(mapping)? {
        Some(given) => given,
        None => detected(&headings, rows, mapping, device, notes)?,
    };
    if let Some(separator) = separator
        && headings.iter().all(|heading| device_and_heading(heading, separator).is_none())
    {
        return Err(format!(
            "device_separator {:?}: no column with values has it in its heading; their headings are {}",
            separator.to_string(),
            headings.join(", ")
        ));
    }
    let metric = |(index, heading): (usize, &str)| {
        let split = separator.and_then(|separator| device_and_heading(heading, separator));
        let (device, rest) = split.map_or((None, heading), |(device, rest)| (Some(device), rest));
        let (name, unit) = metric_and_unit(rest);
        let unit = unit.map(|unit| unit.meant_for(&name).unwrap_or(unit));
        Ok(Metric {
            index,
            device: device.map(|device| column_name("device", heading, device)).transpose()?,
            name: column_name("metric", heading, &name)?,
            unit,
            scale: 1.0,
            offset: 0.0,
        })
    };
    let metrics: Vec<Metric> =
        columns.iter().copied().zip(headings.iter().copied()).map(metric).collect::<Result<_, String>>()?;
    if mapping.device_separator.is_none() && separator.is_some() {
        notes.push(format!(
            "headings name devices: {} (--device-separator none reads them as metrics)",
            some_of(&metrics)
        ));
    }
    Ok(metrics)
}

/// The separator that the user gave, or that there is none.
fn given(mapping: &Mapping) -> Result<Option<Option<char>>, String> {
    let Some(text) = mapping.device_separator.as_deref() else { return Ok(None) };
    match text.parse() {
        _ if text == "none" => Ok(Some(None)),
        Ok(one) if !char::is_alphanumeric(one) && !char::is_whitespace(one) && !char::is_control(one) => {
            Ok(Some(Some(one)))
        }
        _ => Err(format!(
            "device_separator {text:?}: expected one character that is not a letter, a digit or white space, or none"
        )),
    }
}

fn detected(
    headings: &[&str],
    rows: &Rows,
    mapping: &Mapping,
    device: &Device,
    notes: &mut Vec<String>,
) -> Result<Option<char>, String> {
    let names_device = |heading: &&&str| {
        device_and_heading(heading, USUAL).is_some_and(|(device, metric)| !is_quantity(device, metric))
    };
    let Some(with) = headings.iter().find(names_device) else { return Ok(None) };
    let given = match device {
        Device::Fixed(name) if mapping.device.is_some() => Some(format!("of device {name:?}")),
        Device::Fixed(_) => None,
        Device::Column(index) => Some(format!("of the device in column {:?}", rows.headings[*index])),
    };
    if let Some(given) = given {
        notes.push(format!(
            "headings such as {with:?} are metrics {given} (--device-separator {USUAL} reads devices in them)"
        ));
        return Ok(None);
    }
    match headings.iter().find(|heading| !names_device(heading)) {
        None => Ok(Some(USUAL)),
        Some(without) => Err(format!(
            "the heading {with:?} has a device and {without:?} has none: give --device-separator {USUAL} if the others are \
             metrics of one device, --device-separator none if all headings are metrics, or a map"
        )),
    }
}

/// Names of devices, for a note.
fn some_of(metrics: &[Metric]) -> String {
    let devices: BTreeSet<&Arc<str>> = metrics.iter().filter_map(|metric| metric.device.as_ref()).collect();
    let more = devices.len().saturating_sub(NOTED);
    let names: Vec<&str> = devices.iter().take(NOTED).map(|device| &***device).collect();
    match more {
        0 => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}
