//! Sizes in bytes.

use std::{fmt, str::FromStr};

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text_or_number::text_or_number;
use crate::parse_error::ParseError;

/// A size in bytes, written as `4MiB`, `500kB` or a plain number. Displayed exactly, in the largest binary unit that
/// divides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

impl Size {
    /// `count` times 1024 bytes.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` times 1024² bytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The number of bytes, saturated at [`usize::MAX`].
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let exact = units.into_iter().find(|(bits, _)| self.0 > 0 && self.0.trailing_zeros() >= *bits);
        match exact {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl FromStr for Size {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem = || format!("{text:?} is not a size, expected a size such as 4MiB, 500kB or 1048576");
        let size = text.trim().parse::<ByteSize>().map_err(|_| ParseError::new(problem()))?;
        Ok(Self(size.as_u64()))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_number(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_displayed_exactly() {
        for (text, bytes, shown) in [
            ("4MiB", 4 << 20, "4MiB"),
            ("4 MiB", 4 << 20, "4MiB"),
            ("500kB", 500_000, "500000B"),
            ("1048576", 1 << 20, "1MiB"),
            ("1536KiB", 1536 << 10, "1536KiB"),
            ("0", 0, "0B"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size::kib(4));
    }

    #[test]
    fn the_error_for_an_invalid_size_shows_valid_ones() {
        for text in ["4XiB", "big", "-1", ""] {
            assert_eq!(
                text.parse::<Size>().unwrap_err().to_string(),
                format!("{text:?} is not a size, expected a size such as 4MiB, 500kB or 1048576")
            );
        }
    }
}
