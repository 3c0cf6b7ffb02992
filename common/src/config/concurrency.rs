//! How many tasks of a lane run concurrently.

use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text_or_number::text_or_number;

/// The size range of a pool: `min` workers always run, up to `max` under load.
/// Written `MIN..MAX`, or `N` for `N..N`; `1 <= min <= max`.
#[derive(Debug, Display, Clone, Copy, PartialEq, Eq, Hash)]
#[display("{min}..{max}")]
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

impl FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        match (min.trim().parse(), max.trim().parse()) {
            (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok(Self { min, max }),
            _ => Err(format!(
                "concurrency {text:?} is not a range, expected MIN..MAX with 1 <= MIN <= MAX, such as 1..4"
            )),
        }
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
