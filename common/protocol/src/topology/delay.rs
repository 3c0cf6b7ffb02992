//! The delay of a retry queue, formatted as in queue names: `500ms`, `5s`, `15m`, `1h`.

use std::{fmt, time::Duration};

/// The delay of a rung of the retry ladder, in whole milliseconds, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delay(u64);

impl Delay {
    /// A delay of `ms` milliseconds; 0 becomes 1.
    pub const fn from_millis(ms: u64) -> Self {
        Self(if ms == 0 { 1 } else { ms })
    }

    /// The delay in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The delay as a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for Delay {
    fn from(span: Duration) -> Self {
        Self::from_millis(span.as_millis().try_into().unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 3_600_000 == 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1_000 == 0 => write!(f, "{}s", ms / 1_000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_formatted_in_the_largest_whole_unit() {
        let written =
            [500, 1_000, 15_000, 60_000, 90_000, 3_600_000].map(|ms| Delay::from_millis(ms).to_string());
        assert_eq!(written, ["500ms", "1s", "15s", "1m", "90s", "1h"]);
    }
}
