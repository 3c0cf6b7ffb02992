//! The report of a recalibration.

use garenne_operator::table::{grouped, lay_out};
use serde::Serialize;

use super::selection::Series;

/// Series that the table names.
const MAX_SERIES: usize = 20;

/// Failed devices that are named.
const MAX_FAILURES: usize = 20;

/// The counts of a recalibration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    pub(super) dry_run: bool,
    /// Whether it ended before all devices were read.
    pub(super) interrupted: bool,
    /// The devices that were selected.
    pub(super) devices: u64,
    /// The devices that were not read to the end, without those that failed.
    pub(super) devices_left: u64,
    pub(super) devices_failed: u64,
    /// The first of the devices that failed.
    pub(super) failures: Vec<DeviceFailure>,
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// The series with the most changed values.
    pub(super) series: Vec<SeriesChange>,
}

/// The counts of some readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) read: u64,
    /// Changed readings, including those of which only the version changed.
    pub(super) changed: u64,
    /// Readings with another value, unit or flags.
    pub(super) value_changed: u64,
    pub(super) unchanged: u64,
    /// Readings without a raw value, such as derived ones.
    pub(super) without_raw: u64,
    /// Readings with a raw value whose unit is not known.
    pub(super) without_raw_unit: u64,
    /// Readings that a person has corrected, which stay as they are.
    pub(super) corrected: u64,
    /// Changed readings that had a rule and have none in the file.
    pub(super) without_rule: u64,
    pub(super) derived_written: u64,
    pub(super) derived_removed: u64,
}

/// A series with changed values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SeriesChange {
    device: String,
    metric: String,
    value_changed: u64,
}

/// A device whose readings could not be computed to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DeviceFailure {
    pub(super) device: String,
    pub(super) error: String,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.changed += other.changed;
        self.value_changed += other.value_changed;
        self.unchanged += other.unchanged;
        self.without_raw += other.without_raw;
        self.without_raw_unit += other.without_raw_unit;
        self.corrected += other.corrected;
        self.without_rule += other.without_rule;
        self.derived_written += other.derived_written;
        self.derived_removed += other.derived_removed;
    }
}

impl Report {
    /// Adds the counts of a series.
    pub(super) fn add(&mut self, series: &Series, counts: &Counts) {
        self.counts.add(counts);
        if counts.value_changed > 0 {
            let Series { device, metric } = series.clone();
            let place = self.series.partition_point(|other| other.value_changed >= counts.value_changed);
            self.series.insert(place, SeriesChange { device, metric, value_changed: counts.value_changed });
            self.series.truncate(MAX_SERIES);
        }
    }

    /// Adds a device that was not read to the end, because the command was interrupted.
    pub(super) fn add_left(&mut self) {
        self.devices_left += 1;
        self.interrupted = true;
    }

    /// Adds a device that failed. What was computed of it before stays.
    pub(super) fn add_failure(&mut self, device: &str, error: &str) {
        self.devices_failed += 1;
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(DeviceFailure { device: device.to_owned(), error: error.to_owned() });
        }
    }

    /// The failure, on one line; [`None`] if there was none.
    pub(super) fn problem(&self) -> Option<String> {
        let DeviceFailure { device, error } = self.failures.first()?;
        let Self { devices, devices_failed, .. } = self;
        Some(format!("{devices_failed} of {devices} devices failed, first {device}: {error}"))
    }

    /// One JSON object.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("counts and names are JSON") + "\n"
    }

    /// Lines for a terminal.
    pub(super) fn text(&self) -> String {
        let Counts {
            read,
            changed,
            value_changed,
            unchanged,
            without_raw,
            without_raw_unit,
            corrected,
            without_rule,
            derived_written,
            derived_removed,
        } = self.counts;
        let mut text = String::new();
        if !self.series.is_empty() {
            let rows = self.series.iter().map(|SeriesChange { device, metric, value_changed }| {
                [device.clone(), metric.clone(), grouped(*value_changed)]
            });
            text += &lay_out(&["device", "metric", ">other values"], rows);
            text.push('\n');
        }
        let would = if self.dry_run { "would be " } else { "" };
        let mut lines = vec![format!(
            "{} readings: {} {would}changed ({} with another value, unit or flags), {} unchanged, {} skipped",
            grouped(read),
            grouped(changed),
            grouped(value_changed),
            grouped(unchanged),
            grouped(without_raw + without_raw_unit + corrected),
        )];
        if without_raw > 0 {
            lines
                .push(format!("{} skipped: without a raw value, such as derived ones", grouped(without_raw)));
        }
        if without_raw_unit > 0 {
            lines.push(format!(
                "{} skipped: the unit of the raw value is not known; they were stored before it was kept",
                grouped(without_raw_unit)
            ));
        }
        if corrected > 0 {
            lines.push(format!("{} skipped: a person has corrected them", grouped(corrected)));
        }
        if without_rule > 0 {
            lines.push(format!(
                "{} had a rule and {would}have none in this file: they are as sent",
                grouped(without_rule)
            ));
        }
        lines.push(format!(
            "derived values: {} {would}written, {} {would}removed",
            grouped(derived_written),
            grouped(derived_removed)
        ));
        for DeviceFailure { device, error } in &self.failures {
            lines.push(format!("failed: {device}: {error}"));
        }
        if self.interrupted {
            lines.push(format!(
                "interrupted: {} of {} devices are left, whose other readings are as they were; run the command again",
                grouped(self.devices_left),
                grouped(self.devices),
            ));
        }
        if value_changed > 0 && !self.dry_run {
            lines.push("alarms: the workers judge the changed values again".to_owned());
        }
        text + &lines.join("\n") + "\n"
    }
}
