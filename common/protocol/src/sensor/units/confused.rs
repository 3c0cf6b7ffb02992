//! Symbols that are written for another unit.
//!
//! `C` is the coulomb and `F` the farad. A temperature has neither, but sensors send both for degrees.

use super::Unit;

/// A symbol, the unit that is meant, and whether a word of a metric's name says so.
type Confusion = (&'static str, &'static str, fn(&str) -> bool);

const CONFUSED: [Confusion; 4] = [
    ("C", "Cel", is_temperature),
    ("F", "degF", is_temperature),
    ("S", "s", is_duration),
    ("H", "h", is_duration),
];

/// `temp`, `temperature`, `Temperatur`, `roomTemp`, `dew`, `dewpoint`.
fn is_temperature(word: &str) -> bool {
    word.contains("temperat") || word.ends_with("temp") || word.starts_with("dew")
}

fn is_duration(word: &str) -> bool {
    matches!(word, "duration" | "uptime" | "runtime" | "elapsed" | "age")
}

impl Unit {
    /// The unit that is meant by this one's symbol for `metric`. `None` if the two do not contradict each other.
    pub fn meant_for(self, metric: &str) -> Option<Self> {
        let (_, meant, says) = CONFUSED.iter().find(|(symbol, ..)| *symbol == self.symbol())?;
        let metric = metric.to_lowercase();
        metric.split(|c: char| !c.is_alphabetic()).any(says).then(|| Self::get(meant)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
