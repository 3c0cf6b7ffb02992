//! Timestamps with microsecond precision, which are part of a reading's key.

use std::fmt;

use serde::{Serialize, Serializer};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Microseconds since 1970-01-01T00:00:00Z in POSIX time, in the years 0000 to 9999.
///
/// A timestamp is part of a reading's key, so all notations of a time must give the same value. A double holds
/// Unix seconds of this century with a precision of 0.24 µs: `1276020076.001` and `2010-06-08T18:01:16.001Z` are
/// equal only if both are rounded to microseconds. Postgres also stores microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a value is not a valid timestamp. The text states what was expected; the caller adds the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTimestamp {
    /// Not in RFC 3339 format, or a date or time that does not exist.
    #[error("not an RFC 3339 date and time such as 2026-11-20T07:30:00Z")]
    Form,
    /// A date and time without a UTC offset. Guessing one would shift readings by hours.
    #[error("no UTC offset; end it with Z or an offset such as +02:00")]
    NoOffset,
    /// Outside the years 0000 to 9999, which RFC 3339 is limited to.
    #[error("outside the years 0000 to 9999; a number is Unix seconds, not milliseconds")]
    Range,
    /// NaN or infinite.
    #[error("not a finite number of Unix seconds")]
    NotFinite,
}

pub(super) const MICROS: i64 = 1_000_000;
/// 0000-01-01T00:00:00Z
pub(super) const MIN: i64 = -62_167_219_200 * MICROS;
/// 9999-12-31T23:59:59.999999Z
pub(super) const MAX: i64 = 253_402_300_800 * MICROS - 1;

impl Timestamp {
    /// 1970-01-01T00:00:00Z
    pub const UNIX_EPOCH: Self = Self(0);

    /// 1990-01-01T00:00:00Z, the default of the setting `min_time`. Times before it are almost always numbers in another
    /// unit, or clocks that are not set.
    pub const DEFAULT_MIN: Self = Self(631_152_000 * MICROS);

    /// A timestamp from microseconds since 1970.
    ///
    /// # Errors
    /// [`BadTimestamp::Range`] outside the years 0000 to 9999.
    pub const fn from_micros(micros: i64) -> Result<Self, BadTimestamp> {
        if micros < MIN || micros > MAX { Err(BadTimestamp::Range) } else { Ok(Self(micros)) }
    }

    /// A timestamp from Unix seconds, rounded to the nearest microsecond.
    ///
    /// # Errors
    /// [`BadTimestamp::NotFinite`], or [`BadTimestamp::Range`] outside the years 0000 to 9999.
    pub fn from_unix_seconds(seconds: f64) -> Result<Self, BadTimestamp> {
        Self::UNIX_EPOCH.plus_seconds(seconds)
    }

    /// The timestamp plus a number of seconds, which may be negative, rounded to the nearest microsecond.
    ///
    /// # Errors
    /// As [`from_unix_seconds`](Self::from_unix_seconds).
    pub fn plus_seconds(self, seconds: f64) -> Result<Self, BadTimestamp> {
        if !seconds.is_finite() {
            return Err(BadTimestamp::NotFinite);
        }
        // Converted in two parts, because multiplying a large double by 1e6 would round twice.
        let whole = seconds.trunc();
        if whole.abs() > 1e12 {
            return Err(BadTimestamp::Range);
        }
        Self::from_micros(self.0 + whole as i64 * MICROS + ((seconds - whole) * 1e6).round() as i64)
    }

    /// The exact value in microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The value in Unix seconds, exact to the microsecond until about the year 2250.
    pub fn as_unix_seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Parses RFC 3339 with `T`, `t` or a space between date and time. Any number of decimals is accepted and
    /// rounded to microseconds. A leap second is the second before it, with its own fraction. A second 60 at another
    /// time than the end of a month in UTC is refused.
    ///
    /// # Errors
    /// [`BadTimestamp`] for another format, a date that does not exist, a missing offset, or a time outside the
    /// years 0000 to 9999.
    pub fn parse(text: &str) -> Result<Self, BadTimestamp> {
        // The time crate accepts any character there.
        if !matches!(text.as_bytes().get(10), Some(b'T' | b't' | b' ')) {
            return Err(BadTimestamp::Form);
        }
        let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) else {
            let needs_offset = OffsetDateTime::parse(&format!("{text}Z"), &Rfc3339).is_ok();
            return Err(if needs_offset { BadTimestamp::NoOffset } else { BadTimestamp::Form });
        };
        // The time crate has checked the second 60, and lost its fraction.
        if text.as_bytes()[17..19] == *b"60" {
            return Self::parse(&[&text[..17], "59", &text[19..]].concat());
        }
        let micros = i64::from(at.nanosecond() + 500) / 1_000;
        Self::from_micros(at.unix_timestamp() * MICROS + micros)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC without trailing zeros in the fraction: `2010-06-08T18:01:16.001Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut buffer = [0; 27];
        let mut rest = buffer.as_mut_slice();
        OffsetDateTime::from(*self).format_into(&mut rest, &Rfc3339).expect("the longest time has 27 bytes");
        let length = 27 - rest.len();
        f.write_str(str::from_utf8(&buffer[..length]).expect("digits and separators are ASCII"))
    }
}

impl From<OffsetDateTime> for Timestamp {
    /// Rounds down to microseconds. Times outside the years 0000 to 9999 become the nearest time inside.
    fn from(at: OffsetDateTime) -> Self {
        let micros = at.unix_timestamp_nanos().div_euclid(1_000);
        Self(micros.clamp(i128::from(MIN), i128::from(MAX)) as i64)
    }
}

impl From<Timestamp> for OffsetDateTime {
    fn from(at: Timestamp) -> Self {
        Self::from_unix_timestamp_nanos(i128::from(at.0) * 1_000)
            .expect("the years 0000 to 9999 are within OffsetDateTime's range")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
