//! An interval of readings that violate a condition.

use super::condition::Micros;

/// An interval of readings that violate a condition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excursion {
    /// The time of the first violating reading.
    pub since: Micros,
    /// The time of the last violating reading.
    pub upto: Micros,
    /// The time of the reading that ended it; none while it lasts.
    pub ended: Option<Micros>,
    /// The value of the first violating reading.
    pub value: f64,
}
