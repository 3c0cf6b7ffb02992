//! Readings as rules evaluate them.

use garenne_protocol::sensor::Unit;

/// Microseconds: a time since the Unix epoch, or a duration.
pub type Micros = i64;

/// A stored reading in the unit in which it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The time since the Unix epoch.
    pub at: Micros,
    /// The value, in `unit`.
    pub value: f64,
    /// The unit, if known.
    pub unit: Option<Unit>,
}

/// A reading in the unit of the rule that evaluates it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The time since the Unix epoch.
    pub at: Micros,
    /// The value, in the rule's unit.
    pub value: f64,
}
