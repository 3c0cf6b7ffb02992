//! A stored reading, and what a calibration makes of it.

use std::str::FromStr;

use garenne_protocol::sensor::{SentCounter, Unit};
use garenne_readings::{Calibration, Flag, NO_CALIBRATION, calibration::Calibrated};
use time::OffsetDateTime;

use super::selection::Series;

/// A measured reading of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) time: OffsetDateTime,
    pub(super) raw: f64,
    /// The unit of the raw value; none if the sender gave none.
    pub(super) raw_unit: Option<String>,
    pub(super) value: f64,
    pub(super) unit: Option<String>,
    pub(super) quality: Vec<String>,
    /// None before readings had versions.
    pub(super) calibration: Option<String>,
    /// What the sender says of a counter.
    pub(super) sent_counter: Option<SentCounter>,
}

impl Row {
    /// The columns that [`of`](Self::of) reads, in their order.
    pub(super) const COLUMNS: &str = "time, raw, raw_unit, value, unit, quality, calibration";

    /// A stored reading, without what the sender says of a counter; [`None`] for a derived value.
    pub(super) fn of(row: &tokio_postgres::Row) -> Option<Self> {
        Some(Self {
            time: row.get(0),
            raw: row.get::<_, Option<_>>(1)?,
            raw_unit: row.get(2),
            value: row.get(3),
            unit: row.get(4),
            quality: row.get(5),
            calibration: row.get(6),
            sent_counter: None,
        })
    }

    /// The row as it would have been stored with a calibration. None if the unit of the raw value is not known to this
    /// program.
    ///
    /// Flags that do not follow from the value stay.
    pub(super) fn recalibrated(&self, series: &Series, calibration: &Calibration) -> Option<Self> {
        let raw_unit = match &self.raw_unit {
            Some(symbol) => Some(Unit::get(symbol)?),
            None => None,
        };
        let Series { device, metric } = series;
        let Calibrated { value, unit, quality, version, .. } =
            calibration.calibrate(device, metric, self.time.into(), self.raw, raw_unit, self.sent_counter);
        let computed = quality.into_iter().map(|flag| <&str>::from(flag).to_owned());
        let others = self.quality.iter().filter(|flag| !is_computed(flag)).cloned();
        Some(Self {
            value,
            unit: unit.map(|unit| unit.symbol().to_owned()),
            quality: computed.chain(others).collect(),
            calibration: Some(version.as_deref().unwrap_or(NO_CALIBRATION).to_owned()),
            ..self.clone()
        })
    }

    /// Whether a person has corrected it. Only a person changes it again.
    pub(super) fn is_corrected(&self) -> bool {
        self.quality.iter().any(|flag| flag == <&str>::from(Flag::Corrected))
    }

    /// Whether a reader of both gets different values.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        (self.value, &self.unit, &self.quality) == (other.value, &other.unit, &other.quality)
    }
}

/// Whether a flag follows from the value and the calibration.
fn is_computed(flag: &str) -> bool {
    Flag::from_str(flag).is_ok_and(Flag::concerns_value)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_reading_becomes_what_it_would_have_been() {
        let rules = r#"
            [[calibration]]
            metric = "temperature"
            until = 2026-03-01T00:00:00Z
            version = "second"
            unit = "Cel"
            offset = -5.0
            valid = [0, 30]"#;
        let calibration = Calibration::parse(rules).unwrap();
        let series = Series { device: "a".to_owned(), metric: "temperature".to_owned() };
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let stored = Row {
            time: datetime!(2026-02-28 23:59 UTC),
            raw: 104.0,
            raw_unit: Some("degF".to_owned()),
            value: 104.0,
            unit: Some("degF".to_owned()),
            quality: texts(&["not-calibrated", "time-assumed", "inspected"]),
            calibration: Some("first".to_owned()),
            sent_counter: None,
        };
        let expected = Row {
            value: 35.0,
            unit: Some("Cel".to_owned()),
            quality: texts(&["out-of-range", "time-assumed", "inspected"]),
            calibration: Some("second".to_owned()),
            sent_counter: None,
            ..stored.clone()
        };
        assert_eq!(stored.recalibrated(&series, &calibration), Some(expected.clone()));
        assert_eq!(expected.recalibrated(&series, &calibration), Some(expected.clone()));
        assert!(!stored.reads_as(&expected));

        let later = Row { time: datetime!(2026-03-01 00:00 UTC), ..expected };
        let sent = later.recalibrated(&series, &calibration).unwrap();
        assert_eq!(
            (sent.value, sent.unit.as_deref(), sent.calibration.as_deref()),
            (104.0, Some("degF"), Some("none"))
        );
        assert_eq!(sent.quality, texts(&["time-assumed", "inspected"]));
        let codes = "[[plausible]]\nmetric = \"temperature\"\nunit = \"Cel\"\nnone = [40]\nvalid = [0, 30]\n";
        let flagged = sent.recalibrated(&series, &Calibration::parse(codes).unwrap()).unwrap();
        assert_eq!(
            (flagged.value, flagged.quality),
            (104.0, texts(&["out-of-range", "impossible", "time-assumed", "inspected"]))
        );
        let foreign = Row { raw_unit: Some("smoot".to_owned()), ..sent };
        assert_eq!(foreign.recalibrated(&series, &calibration), None);
    }
}
