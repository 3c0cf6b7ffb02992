//! Values and their times.

use garenne_protocol::sensor::Timestamp;

/// Values and their times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// The time of each value.
    pub times: Vec<Timestamp>,
    /// The values; none for a missing one. As many as times.
    pub values: Vec<Option<f64>>,
}
