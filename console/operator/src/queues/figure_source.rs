//! Where a figure comes from, and how old it is.

use serde::Serialize;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Passive declares: what the broker counts at that moment.
    Amqp,
    /// The sum of what the workers report.
    Heartbeats,
    /// The management API: the broker's statistics, which it updates every few seconds.
    Management,
}

/// Source and age of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FigureSource {
    /// Where the figure comes from.
    pub source: Source,
    /// Its age is at most this, milliseconds.
    pub age_ms: u64,
}
