//! How many tasks of a lane run concurrently.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// The size range of a pool: `min` workers always run, up to `max` under load.
/// Written `MIN..MAX`, or `N` for `N..N`; `1 <= min <= max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// Workers that stay when the lane is idle.
    pub min: usize,
    /// Most workers; a lane's prefetch is at least this.
    pub max: usize,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { min: 1, max: 4 }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min, self.max)
    }
}

/// Text that is not a valid range of workers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("concurrency {0:?} is not a range, expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4")]
pub struct BadConcurrency(String);

impl FromStr for Concurrency {
    type Err = BadConcurrency;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadConcurrency(text.to_owned());
        let number = |part: &str| part.trim().parse::<usize>().map_err(|_| bad());
        let (min, max) = match text.split_once("..") {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        if min == 0 || min > max {
            return Err(bad());
        }
        Ok(Self { min, max })
    }
}

impl Serialize for Concurrency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Concurrency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RangeOrNumber)
    }
}

/// Accepts text and, as in `concurrency = 4`, a number.
struct RangeOrNumber;

impl Visitor<'_> for RangeOrNumber {
    type Value = Concurrency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MIN..MAX with 1 <= MIN <= MAX, such as 1..4")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Concurrency, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Concurrency, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Concurrency, E> {
        self.visit_str(&number.to_string())
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
