//! Units of the SenML registry: lookup, conversion, and suggestions for unknown names.
//!
//! There are three groups: the primary units of RFC 8428 §12.1 and RFC 8798 §2, the secondary units of RFC 8798
//! §3 (a primary unit with a scale and an offset), and some units that recordings use but that are not registered,
//! above all degrees Fahrenheit. A unit may be written in several ways, such as `°C`, and has one symbol. RFC 8428 limits a pack to primary units. The other groups are
//! accepted too, because `hPa` from a sensor can only mean hectopascal.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

mod confused;
mod registry;

use registry::{Entry, PRIMARY, SECONDARY, SPELLINGS, UNREGISTERED};

/// A known unit. `Copy`: it is a pointer into a static table.
#[derive(Clone, Copy)]
pub struct Unit(&'static Entry);

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.symbol)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.symbol)
    }
}

/// A text is not a known unit. The error text is one line and suggests the nearest unit if one is similar enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownUnit(String);

/// Two units measure different quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{from} ({}) cannot be converted to {to} ({})", from.description(), to.description())]
pub struct Incompatible {
    /// The unit of the value.
    pub from: Unit,
    /// The unit asked for.
    pub to: Unit,
}

/// Bytes of the longest text that may be another spelling of a symbol.
const MAX_SYMBOL: usize = 40;

static BY_SYMBOL: LazyLock<HashMap<&str, Unit>> = LazyLock::new(|| {
    let mut units: HashMap<_, _> = Unit::all().map(|unit| (unit.symbol(), unit)).collect();
    for (spelling, symbol) in SPELLINGS {
        units.insert(spelling, units[symbol]);
    }
    units
});

impl Unit {
    /// Looks up a symbol. Symbols are case-sensitive: `S` is siemens, `s` is second.
    ///
    /// # Errors
    /// [`UnknownUnit`], with the nearest unit.
    pub fn parse(symbol: &str) -> Result<Self, UnknownUnit> {
        Self::get(symbol).ok_or_else(|| {
            let given: String = symbol.chars().take(40).collect();
            let hint = nearest(symbol)
                .map(|unit| format!("; the nearest is {:?} ({})", unit.symbol(), unit.description()));
            UnknownUnit(format!("{given:?} is not a SenML unit{}", hint.unwrap_or_default()))
        })
    }

    /// Looks up a symbol or another spelling of one, without a suggestion for unknown ones. `°C` is `Cel`, and `µg/m³` is
    /// `ug/m3`.
    pub fn get(symbol: &str) -> Option<Self> {
        let exact = BY_SYMBOL.get(symbol).copied();
        if exact.is_some() || symbol.is_ascii() || symbol.len() > MAX_SYMBOL {
            return exact;
        }
        let plain = symbol.chars().map(|character| match character {
            '\u{b5}' | '\u{3bc}' => "u".into(),
            '²' => "2".into(),
            '³' => "3".into(),
            'º' => "°".into(),
            '\u{3a9}' | '\u{2126}' => "Ohm".into(),
            '℃' => "°C".into(),
            '℉' => "°F".into(),
            other => Cow::Owned(other.to_string()),
        });
        BY_SYMBOL.get(plain.collect::<String>().as_str()).copied()
    }

    /// All known units, primary ones first.
    pub fn all() -> impl Iterator<Item = Self> {
        [PRIMARY, SECONDARY, UNREGISTERED].into_iter().flatten().map(Self)
    }

    /// Other spellings of symbols without typographic variants, each with its symbol: (`°C`, `Cel`). Rows that were stored by
    /// earlier versions may have them.
    pub const fn spellings() -> &'static [(&'static str, &'static str)] {
        SPELLINGS
    }

    /// The symbol as the registry spells it.
    pub const fn symbol(self) -> &'static str {
        self.0.symbol
    }

    /// The registry's description of the unit.
    pub const fn description(self) -> &'static str {
        self.0.description
    }

    /// The measured quantity in snake case: `temperature` for `Cel`. It is the metric of a SenML record whose
    /// name has only a device.
    pub const fn quantity(self) -> &'static str {
        self.0.quantity
    }

    /// Whether values of this unit can be converted to `to`.
    pub fn converts_to(self, to: Self) -> bool {
        self.0.base == to.0.base
    }

    /// Converts `value` from this unit to `to`. The value is unchanged if the units are equal; otherwise one
    /// division rounds, or two if neither is the base unit.
    ///
    /// # Errors
    /// [`Incompatible`] if the units measure different quantities.
    pub fn convert(self, value: f64, to: Self) -> Result<f64, Incompatible> {
        if self == to {
            return Ok(value);
        }
        if !self.converts_to(to) {
            return Err(Incompatible { from: self, to });
        }
        let in_base = (value * self.0.multiply + self.0.add) / self.0.divide;
        Ok((in_base * to.0.divide - to.0.add) / to.0.multiply)
    }

    /// A sum of values of this unit over seconds, in the unit that it has: that of watts is in joules. `None` if there is no
    /// such unit.
    pub fn times_seconds(self, sum: f64) -> Option<(f64, Self)> {
        let (_, integral) = TIMES_SECONDS.iter().find(|(unit, _)| *unit == self.0.base)?;
        Some((sum * self.0.multiply / self.0.divide, Self::get(integral)?)).filter(|_| self.0.add == 0.0)
    }
}

/// Units, and those of their values summed over seconds.
const TIMES_SECONDS: [(&str, &str); 9] = [
    ("W", "J"),
    ("VA", "VAs"),
    ("var", "vars"),
    ("A", "C"),
    ("V", "Wb"),
    ("m/s", "m"),
    ("m3/s", "m3"),
    ("bit/s", "bit"),
    ("1/s", "count"),
];

/// The unit that was most likely meant. In this order: a symbol that differs only in case, a unit with the word
/// in its description ("celsius", or with a typo "celcius"), the symbol with the smallest edit distance, at most
/// a third of the characters.
fn nearest(given: &str) -> Option<Unit> {
    let given = given.trim();
    if given.is_empty() || given.len() > 40 {
        return None;
    }
    let lower = given.to_lowercase();
    let is_described = |unit: &Unit, edits: usize| {
        let mut words = unit.description().split([' ', '(', ')', ',', '-']);
        lower.len() > 2 + 2 * edits
            && words.any(|word| strsim::osa_distance(&word.to_lowercase(), &lower) <= edits)
    };
    let distance = |unit: &Unit| strsim::osa_distance(&lower, &unit.symbol().to_lowercase());
    let max_distance = given.chars().count().max(3) / 3;
    Unit::all()
        .find(|unit| unit.symbol().to_lowercase() == lower)
        .or_else(|| Unit::all().find(|unit| is_described(unit, 0)))
        .or_else(|| Unit::all().find(|unit| is_described(unit, 1)))
        .or_else(|| Unit::all().min_by_key(distance).filter(|unit| distance(unit) <= max_distance))
}

impl PartialEq for Unit {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Unit {}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.symbol())
    }
}

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let symbol = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&symbol).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
