//! Symbols that are written for another unit.
//!
//! `C` is the coulomb and `F` the farad. A temperature has neither, but sensors send both for degrees. `%` is the ratio 1,
//! deprecated by the registry in favor of `/`, so 45 of it are 4,500 percent; who sends it means percent.

use super::Unit;

/// A symbol, the unit that is meant, and whether a word of a metric's name says so.
type Confusion = (&'static str, &'static str, fn(&str) -> bool);

/// The first row counts whose symbol is the unit's and of whose words the metric has one.
const CONFUSED: [Confusion; 9] = [
    ("C", "Cel", is_temperature),
    ("F", "degF", is_temperature),
    ("S", "s", is_duration),
    ("H", "h", is_duration),
    ("MB", "mbar", is_pressure),
    ("%", "%", is_ratio),
    ("%", "%RH", is_humidity),
    ("%", "%EL", is_battery),
    ("%", "/100", |_| true),
];

/// `temp`, `temperature`, `Temperatur`, `roomTemp`, `dew`, `dewpoint`.
fn is_temperature(word: &str) -> bool {
    word.contains("temperat") || word.ends_with("temp") || word.starts_with("dew")
}

fn is_duration(word: &str) -> bool {
    matches!(word, "duration" | "uptime" | "runtime" | "elapsed" | "age")
}

fn is_pressure(word: &str) -> bool {
    word.contains("pressure") || word.starts_with("baromet")
}

fn is_ratio(word: &str) -> bool {
    matches!(word, "ratio" | "fraction" | "switch")
}

fn is_humidity(word: &str) -> bool {
    word.contains("humidity") || matches!(word, "hum" | "rh")
}

fn is_battery(word: &str) -> bool {
    word.starts_with("batt") || word == "soc"
}

impl Unit {
    /// The unit that is meant by this one's symbol for `metric`. `None` if the two do not contradict each other.
    pub fn meant_for(self, metric: &str) -> Option<Self> {
        let mut rows = CONFUSED.iter().filter(|(symbol, ..)| *symbol == self.symbol()).peekable();
        rows.peek()?;
        let metric = metric.to_lowercase();
        let (_, meant, _) = rows.find(|(.., says)| metric.split(|c: char| !c.is_alphabetic()).any(says))?;
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
