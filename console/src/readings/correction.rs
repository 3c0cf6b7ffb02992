//! What a correction makes of a reading.

use std::str::FromStr;

use garenne_protocol::sensor::Unit;
use garenne_readings::{Calibration, Flag};

use super::{row::Row, selection::Series};

/// A correction by a person.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Correction {
    /// The value stays, and counts no longer: rules do not judge it, and rollups only count it.
    Flag(Flag),
    /// The value becomes another one. It counts, unless nobody can have measured it.
    Amend(Amendment),
    Delete,
}

/// Another value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amendment {
    Value(f64),
    /// The present one times `factor`, plus `offset`.
    Linear {
        factor: f64,
        /// What is added, in the unit of the value.
        offset: f64,
    },
}

impl Correction {
    /// The name of the command and of the action in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Flag(_) => "flag",
            Self::Amend(_) => "amend",
            Self::Delete => "delete",
        }
    }

    /// The corrected reading; as it was if it is right already, [`None`] if it is removed. `calibration` says which values are
    /// flagged. Fails if the value would not be finite.
    pub(super) fn apply(
        self,
        series: &Series,
        calibration: &Calibration,
        row: &Row,
    ) -> Result<Option<Row>, String> {
        let mut after = row.clone();
        match self {
            Self::Delete => return Ok(None),
            Self::Flag(flag) => {
                [flag, Flag::Corrected].into_iter().for_each(|flag| add(&mut after.quality, flag));
            }
            Self::Amend(amendment) => {
                after.value = match amendment {
                    Amendment::Value(value) => value,
                    Amendment::Linear { factor, offset } => row.value * factor + offset,
                };
                if !after.value.is_finite() {
                    return Err(format!(
                        "{} becomes {}, which is not a finite number",
                        row.value, after.value
                    ));
                }
                // What is said of the time and what other programs say stays.
                after.quality.retain(|flag| !Flag::from_str(flag).is_ok_and(Flag::concerns_value));
                let Series { device, metric } = series;
                let unit = row.unit.as_deref().and_then(Unit::get);
                let flags = calibration.flags(device, metric, row.time.into(), after.value, unit);
                flags.into_iter().chain([Flag::Corrected]).for_each(|flag| add(&mut after.quality, flag));
            }
        }
        Ok(Some(after))
    }
}

fn add(quality: &mut Vec<String>, flag: Flag) {
    let name: &str = flag.into();
    if !quality.iter().any(|other| other == name) {
        quality.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn row(value: f64, quality: &[&str]) -> Row {
        Row {
            time: datetime!(2026-02-28 23:59 UTC),
            raw: 104.0,
            raw_unit: Some("degF".to_owned()),
            value,
            unit: Some("Cel".to_owned()),
            quality: quality.iter().map(|flag| (*flag).to_owned()).collect(),
            calibration: Some("first".to_owned()),
            sent_counter: None,
        }
    }

    fn apply(correction: Correction, row: &Row) -> Result<Option<Row>, String> {
        apply_with("", correction, row)
    }

    fn apply_with(rules: &str, correction: Correction, row: &Row) -> Result<Option<Row>, String> {
        let series = Series { device: "d".to_owned(), metric: "temperature".to_owned() };
        correction.apply(&series, &Calibration::parse(rules).unwrap(), row)
    }

    /// As a worker flags one: rules must not judge it.
    #[test]
    fn an_amended_value_that_nobody_can_have_measured_is_flagged() {
        let amended = |rules: &str, value: f64| {
            let amend = Correction::Amend(Amendment::Value(value));
            apply_with(rules, amend, &row(20.0, &["out-of-range"])).unwrap().unwrap().quality
        };
        for value in [-400.0, -127.0, 65_535.0] {
            assert_eq!(amended("", value), ["impossible", "corrected"], "{value}");
        }
        assert_eq!(amended("", 85.0), ["corrected"]);
        let entry = |more: &str| format!("[[plausible]]\nmetric = \"temperature\"\nunit = \"Cel\"\n{more}");
        assert_eq!(amended(&entry("none = [85]"), 85.0), ["impossible", "corrected"]);
        assert_eq!(amended(&entry("valid = [0, 50]"), 85.0), ["out-of-range", "corrected"]);
        assert_eq!(amended(&entry("shipped = false"), -400.0), ["corrected"]);
        let rule = "[[calibration]]\nmetric = \"temperature\"\nvalid = [0, 50]";
        assert_eq!(amended(rule, 85.0), ["out-of-range", "corrected"]);
    }

    #[test]
    fn a_flag_is_added_once_and_the_value_stays() {
        let flag = Correction::Flag(Flag::Impossible);
        let flagged = row(40.0, &["time-assumed", "impossible", "corrected"]);
        assert_eq!(apply(flag, &row(40.0, &["time-assumed"])), Ok(Some(flagged.clone())));
        assert_eq!(apply(flag, &flagged), Ok(Some(flagged.clone())));
    }

    #[test]
    fn an_amended_value_is_not_in_doubt() {
        let amend = |amendment, row: &Row| apply(Correction::Amend(amendment), row);
        let doubted = row(40.0, &["out-of-range", "time-assumed", "inspected"]);
        let right = row(21.5, &["time-assumed", "inspected", "corrected"]);
        assert_eq!(amend(Amendment::Value(21.5), &doubted), Ok(Some(right.clone())));
        assert_eq!(amend(Amendment::Value(21.5), &right), Ok(Some(right.clone())));
        let linear = Amendment::Linear { factor: 0.5, offset: 1.5 };
        assert_eq!(amend(linear, &doubted), Ok(Some(right)));
        let huge = amend(Amendment::Linear { factor: 1e308, offset: 0.0 }, &doubted);
        assert_eq!(huge.unwrap_err(), "40 becomes inf, which is not a finite number");
        assert_eq!(apply(Correction::Delete, &doubted), Ok(None));
    }
}
