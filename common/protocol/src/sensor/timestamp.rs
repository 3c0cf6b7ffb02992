//! Timestamps with microsecond precision, which are part of a reading's key.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::{Date, Month, OffsetDateTime, format_description::well_known::Rfc3339};

/// Microseconds since 1970-01-01T00:00:00Z in POSIX time, in the years 0000 to 9999.
///
/// A timestamp is part of a reading's key, so all notations of a time must give the same value. A double holds
/// Unix seconds of this century with a precision of 0.24 µs: `1276020076.001` and `2010-06-08T18:01:16.001Z` are
/// equal only if both are rounded to microseconds. Postgres also stores microseconds.
#[derive(Clone, Copy, derive_more::Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[debug("{}", self)]
pub struct Timestamp(i64);

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

const MICROS: i64 = 1_000_000;
/// 0000-01-01T00:00:00Z
const MIN: i64 = -62_167_219_200 * MICROS;
/// 9999-12-31T23:59:59.999999Z
const MAX: i64 = 253_402_300_800 * MICROS - 1;

impl Timestamp {
    /// 1970-01-01T00:00:00Z
    pub const UNIX_EPOCH: Self = Self(0);

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
    /// rounded to microseconds. A leap second becomes the second after it, as in POSIX time.
    ///
    /// # Errors
    /// [`BadTimestamp`] for another format, a date that does not exist, a missing offset, or a time outside the
    /// years 0000 to 9999.
    pub fn parse(text: &str) -> Result<Self, BadTimestamp> {
        let bytes = text.as_bytes();
        let (Some(head), Some(tail)) = (bytes.get(..19), bytes.get(19..)) else {
            return Err(BadTimestamp::Form);
        };
        let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
        if separators.iter().any(|&(at, byte)| head[at] != byte) || !matches!(head[10], b'T' | b't' | b' ') {
            return Err(BadTimestamp::Form);
        }
        let (year, month, day) = (digits(&head[..4])?, digits(&head[5..7])?, digits(&head[8..10])?);
        let (hour, minute, second) = (digits(&head[11..13])?, digits(&head[14..16])?, digits(&head[17..])?);
        if hour > 23 || minute > 59 || second > 60 {
            return Err(BadTimestamp::Form);
        }
        let date = Month::try_from(month as u8)
            .and_then(|month| Date::from_calendar_date(year as i32, month, day as u8))
            .map_err(|_| BadTimestamp::Form)?;
        let days = i64::from(date.to_julian_day() - const { OffsetDateTime::UNIX_EPOCH.to_julian_day() });
        let (micros, zone) = fraction(tail)?;
        let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset(zone)?;
        Self::from_micros(seconds * MICROS + micros)
    }

    /// RFC 3339 in UTC without trailing zeros in the fraction: `2010-06-08T18:01:16.001Z`.
    fn write(self, buffer: &mut [u8; 27]) -> &str {
        let mut rest = buffer.as_mut_slice();
        OffsetDateTime::from(self).format_into(&mut rest, &Rfc3339).expect("the longest time has 27 bytes");
        let length = 27 - rest.len();
        std::str::from_utf8(&buffer[..length]).expect("digits and separators are ASCII")
    }
}

fn digits(bytes: &[u8]) -> Result<i64, BadTimestamp> {
    bytes.iter().try_fold(0, |sum, byte| match byte {
        b'0'..=b'9' => Ok(sum * 10 + i64::from(byte - b'0')),
        _ => Err(BadTimestamp::Form),
    })
}

/// Splits an optional decimal fraction off: its microseconds, and the rest.
fn fraction(tail: &[u8]) -> Result<(i64, &[u8]), BadTimestamp> {
    let [b'.', rest @ ..] = tail else { return Ok((0, tail)) };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return Err(BadTimestamp::Form);
    }
    let kept = length.min(6);
    let mut micros = digits(&rest[..kept])? * 10_i64.pow(6 - kept as u32);
    if rest[..length].get(6).is_some_and(|digit| *digit >= b'5') {
        micros += 1;
    }
    Ok((micros, &rest[length..]))
}

/// The UTC offset in seconds, positive east of UTC.
fn offset(zone: &[u8]) -> Result<i64, BadTimestamp> {
    match zone {
        [b'Z' | b'z'] => Ok(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?);
            if hours > 23 || minutes > 59 {
                return Err(BadTimestamp::Form);
            }
            let seconds = hours * 3_600 + minutes * 60;
            Ok(if *sign == b'-' { -seconds } else { seconds })
        }
        [] => Err(BadTimestamp::NoOffset),
        _ => Err(BadTimestamp::Form),
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write(&mut [0; 27]))
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
        serializer.serialize_str(self.write(&mut [0; 27]))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    /// Accepts RFC 3339 text or a number of Unix seconds.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimestampVisitor)
    }
}

struct TimestampVisitor;

impl de::Visitor<'_> for TimestampVisitor {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an RFC 3339 date and time, or Unix seconds")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
        Timestamp::parse(text).map_err(|error| E::custom(format_args!("time {text:?}: {error}")))
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Timestamp, E> {
        Timestamp::from_unix_seconds(seconds)
            .map_err(|error| E::custom(format_args!("time {seconds}: {error}")))
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Timestamp, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Timestamp, E> {
        self.visit_f64(seconds as f64)
    }
}

impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A time: RFC 3339 with a UTC offset, or Unix seconds. Rounded to microseconds.",
            "anyOf": [
                { "type": "string", "format": "date-time" },
                { "type": "number", "minimum": MIN / MICROS, "maximum": MAX / MICROS }
            ]
        })
    }
}

#[cfg(test)]
mod tests;
