//! Symbols that are written for another unit.
//!
//! `C` is the coulomb and `F` the farad. A temperature has neither, but sensors send both for degrees. `%` is the ratio 1,
//! deprecated by the registry in favor of `/`, so 45 of it are 4,500 percent; who sends it means percent.

use super::Unit;
use crate::sensor::quantity::{HUMIDITY, PRESSURE, TEMPERATURE, Words, without_labels};

/// A symbol, the unit that is meant, and the words of a metric that say so; [`None`] where every metric does.
type Confusion = (&'static str, &'static str, Option<&'static Words>);

/// The first row counts whose symbol is the unit's and of whose words the metric has one.
static CONFUSED: [Confusion; 9] = [
    ("C", "Cel", Some(&TEMPERATURE)),
    ("F", "degF", Some(&TEMPERATURE)),
    ("S", "s", Some(&DURATION)),
    ("H", "h", Some(&DURATION)),
    ("MB", "mbar", Some(&PRESSURE)),
    ("%", "%", Some(&RATIO)),
    ("%", "%RH", Some(&HUMIDITY)),
    ("%", "%EL", Some(&BATTERY)),
    ("%", "/100", None),
];

static DURATION: Words =
    Words { word: |word| matches!(word, "duration" | "uptime" | "runtime" | "elapsed" | "age"), whole: &[] };
static RATIO: Words = Words { word: |word| matches!(word, "ratio" | "fraction" | "switch"), whole: &[] };
static BATTERY: Words = Words { word: |word| word.starts_with("batt") || word == "soc", whole: &[] };

impl Unit {
    /// The unit that is meant by this one's symbol for `metric`. `None` if the two do not contradict each other.
    pub fn meant_for(self, metric: &str) -> Option<Self> {
        let metric = without_labels(metric);
        let mut rows = CONFUSED.iter().filter(|(symbol, ..)| *symbol == self.symbol());
        let (_, meant, _) = rows.find(|(.., words)| words.is_none_or(|words| words.are_in(metric)))?;
        Self::get(meant).filter(|meant| *meant != self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_is_refused_unless_the_metric_is_a_ratio() {
        for (metric, meant) in [
            ("humidity", Some("%RH")),
            ("air.RH", Some("%RH")),
            ("battery", Some("%EL")),
            ("soil_moisture", Some("/100")),
            ("cpu", Some("/100")),
            ("42", Some("/100")),
            ("mixing_ratio", None),
            ("switch", None),
        ] {
            let found = Unit::get("%").unwrap().meant_for(metric);
            assert_eq!(found.map(Unit::symbol), meant, "{metric}");
        }
    }

    #[test]
    fn a_temperature_has_degrees_and_a_duration_has_seconds() {
        for (unit, metric, meant) in [
            ("C", "temperature", Some("Cel")),
            ("C", "water_temp2", Some("Cel")),
            ("C", "roomTemp", Some("Cel")),
            ("F", "Dew point", Some("degF")),
            ("C", "Außentemperatur", Some("Cel")),
            ("S", "uptime", Some("s")),
            ("H", "pump.runtime", Some("h")),
            ("MB", "Pressure", Some("mbar")),
            ("C", "tempC", Some("Cel")),
            ("C", "TempC1", Some("Cel")),
            ("C", "t", Some("Cel")),
            ("C", "kitchen/T2", Some("Cel")),
            ("F", "tempF", Some("degF")),
            ("MB", "pres", Some("mbar")),
            ("MB", "press", Some("mbar")),
            ("MB", "baro", Some("mbar")),
            ("MB", "pressure,room=disk", Some("mbar")),
            ("MB", "disk.used,path=/data/pressure", None),
            ("MB", "button_press", None),
            ("S", "upTime", Some("s")),
            ("MB", "memory", None),
            ("C", "charge", None),
            ("C", "template", None),
            ("C", "attempts", None),
            ("F", "capacitance", None),
            ("Cel", "temperature", None),
            ("K", "temperature", None),
            ("S", "conductance", None),
        ] {
            let found = Unit::get(unit).unwrap().meant_for(metric);
            assert_eq!(found.map(Unit::symbol), meant, "{unit} {metric}");
        }
    }
}
