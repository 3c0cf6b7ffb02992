//! How many tasks of a lane run concurrently.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text_or_number::text_or_number;
use crate::parse_error::ParseError;

/// What a range is.
pub(super) const EXPECTED: &str = "expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4";

/// The size range of a pool: `min` workers always run, up to `max` under load.
/// Written `MIN..MAX`, or `N` for `N..N`; `1 <= min <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// Workers that stay when the lane is idle.
    pub min: usize,
    /// Most workers; a lane's prefetch is at least this.
    pub max: usize,
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min, self.max)
    }
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { min: 1, max: 4 }
    }
}

impl FromStr for Concurrency {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        match (min.trim().parse(), max.trim().parse()) {
            (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok(Self { min, max }),
            _ => Err(ParseError::new(format!("concurrency {text:?} is not a range, {EXPECTED}"))),
        }
    }
}

impl Concurrency {
    /// Whether the range is one that a text could give.
    pub(super) fn is_valid(self) -> bool {
        1 <= self.min && self.min <= self.max
    }
}

impl From<RangeInclusive<usize>> for Concurrency {
    fn from(range: RangeInclusive<usize>) -> Self {
        let (min, max) = range.into_inner();
        Self { min, max }
    }
}

/// As many workers at all times.
impl From<usize> for Concurrency {
    fn from(workers: usize) -> Self {
        Self { min: workers, max: workers }
    }
}

impl Serialize for Concurrency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Concurrency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_number(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_numbers_are_parsed() {
        assert_eq!("2..8".parse(), Ok(Concurrency { min: 2, max: 8 }));
        assert_eq!("3".parse(), Ok(Concurrency { min: 3, max: 3 }));
        assert_eq!(serde_json::from_str::<Concurrency>("5").unwrap(), Concurrency { min: 5, max: 5 });
        assert_eq!(Concurrency::default().to_string(), "1..4");
    }

    #[test]
    fn an_invalid_range_is_refused() {
        for text in ["0..4", "5..4", "..4", "1..", "1...4", "many", "-1..4", ""] {
            assert_eq!(
                text.parse::<Concurrency>().unwrap_err().to_string(),
                format!(
                    "concurrency {text:?} is not a range, expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4"
                )
            );
        }
    }
}
