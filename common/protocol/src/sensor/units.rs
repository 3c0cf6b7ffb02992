//! Units: the SenML registry, looked up, converted, and suggested when a name is not in it.
//!
//! Three groups are known: the primary units of RFC 8428 §12.1 and RFC 8798 §2, the secondary
//! units of RFC 8798 §3 (a scale and an offset from a primary unit), and a few spellings that real
//! recordings use and that the registry leaves out on purpose, above all degrees Fahrenheit.
//! RFC 8428 limits a pack to primary units; secondary ones and those spellings are accepted all
//! the same, because a sensor that says `hPa` means hectopascals.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

mod registry;
pub use registry::Group;
use registry::{ENTRIES, Entry};

/// A unit of the registry. Copying it is copying a pointer.
#[derive(Clone, Copy)]
pub struct Unit(&'static Entry);

/// A name that is no unit here. One line, with the closest name that is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a SenML unit{}", suggestion(*.nearest))]
pub struct UnknownUnit {
    /// What was given, shortened to 40 characters.
    pub given: String,
    /// The closest unit, where one is close enough to be worth naming.
    pub nearest: Option<Unit>,
}

/// Two units that measure different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{from} ({}) cannot be converted to {to} ({})", from.description(), to.description())]
pub struct Incompatible {
    /// The unit of the value.
    pub from: Unit,
    /// The unit asked for.
    pub to: Unit,
}

fn suggestion(nearest: Option<Unit>) -> String {
    nearest
        .map(|unit| format!("; the nearest is {:?} ({})", unit.symbol(), unit.description()))
        .unwrap_or_default()
}

static BY_SYMBOL: LazyLock<Vec<&'static Entry>> = LazyLock::new(|| {
    let mut index: Vec<_> = ENTRIES.iter().collect();
    index.sort_unstable_by_key(|entry| entry.symbol);
    index
});

impl Unit {
    /// Looks a symbol up; case matters, as the registry says (`S` is siemens, `s` seconds).
    ///
    /// # Errors
    /// [`UnknownUnit`], naming the nearest.
    pub fn parse(symbol: &str) -> Result<Self, UnknownUnit> {
        Self::get(symbol)
            .ok_or_else(|| UnknownUnit { given: symbol.chars().take(40).collect(), nearest: nearest(symbol) })
    }

    /// Looks a symbol up.
    pub fn get(symbol: &str) -> Option<Self> {
        let at = BY_SYMBOL.binary_search_by_key(&symbol, |entry| entry.symbol).ok()?;
        Some(Self(BY_SYMBOL[at]))
    }

    /// Every unit known, primary ones first.
    pub fn all() -> impl Iterator<Item = Self> {
        ENTRIES.iter().map(Self)
    }

    /// The symbol as the registry spells it.
    pub const fn symbol(self) -> &'static str {
        self.0.symbol
    }

    /// What the registry calls it.
    pub const fn description(self) -> &'static str {
        self.0.description
    }

    /// What is measured in it, as one word in snake case: `temperature` for `Cel`. Stands in for
    /// the metric of a SenML record whose name is only its device's.
    pub const fn quantity(self) -> &'static str {
        self.0.quantity
    }

    /// Where the unit comes from.
    pub const fn group(self) -> Group {
        self.0.group
    }

    /// The primary unit of the registry that this one is a multiple of; itself for a primary unit.
    pub fn primary(self) -> Self {
        Self::get(self.0.primary).expect("the table names only primary units that it holds")
    }

    /// Whether values can be converted from one to the other.
    pub fn converts_to(self, to: Self) -> bool {
        self.0.base == to.0.base
    }

    /// `value`, given in this unit, expressed in `to`. Unchanged when the units are the same; one
    /// division rounds otherwise, or two where neither is the base unit.
    ///
    /// # Errors
    /// [`Incompatible`] when the two measure different things.
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
}

/// The unit that was most likely meant: same letters in another case, then a word that
/// the description holds ("celsius", "celcius"), then the fewest edits, at most a third of the letters.
fn nearest(given: &str) -> Option<Unit> {
    let given = given.trim();
    if given.is_empty() || given.len() > 40 {
        return None;
    }
    let lower = given.to_lowercase();
    let same_letters = || Unit::all().find(|unit| unit.symbol().to_lowercase() == lower);
    let named = |edits: usize| {
        let lower = &lower;
        Unit::all().find(|unit| {
            let words = unit.description().split([' ', '(', ')', ',', '-']).map(str::to_lowercase);
            lower.len() > 2 + 2 * edits
                && words.into_iter().any(|word| strsim::osa_distance(&word, lower) <= edits)
        })
    };
    let edits = || {
        Unit::all()
            .map(|unit| (strsim::osa_distance(&lower, &unit.symbol().to_lowercase()), unit))
            .min_by_key(|(distance, _)| *distance)
            .filter(|(distance, _)| distance * 3 <= given.chars().count().max(3))
            .map(|(_, unit)| unit)
    };
    same_letters().or_else(|| named(0)).or_else(|| named(1)).or_else(edits)
}

impl PartialEq for Unit {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Unit {}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

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

impl schemars::JsonSchema for Unit {
    fn schema_name() -> Cow<'static, str> {
        "Unit".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let symbols: Vec<_> = Self::all().map(Self::symbol).collect();
        schemars::json_schema!({
            "description": "A unit of the SenML registry (RFC 8428, RFC 8798); case matters.",
            "type": "string",
            "enum": symbols
        })
    }
}

#[cfg(test)]
mod tests;
