//! Times of foreign payloads.

use garenne_protocol::sensor::{Timestamp, timestamp::BadTimestamp};
use jiff::{
    civil::DateTime,
    fmt::strtime::{self, BrokenDownTime},
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};

use crate::{document::Value, limits::MAX_PARTS};

/// The formats of a rule's times. The first one that fits counts.
#[derive(Debug, Clone)]
pub(crate) struct TimeFormats {
    formats: Vec<TimeFormat>,
    /// The zone of times without an offset. `None` refuses these.
    zone: Option<TimeZone>,
}

#[derive(Debug, Clone)]
enum TimeFormat {
    /// RFC 3339; with a zone, the offset may be absent.
    Rfc3339,
    /// Unix time, as a number or its text, with this many units in a second.
    Unix { per_second: i64 },
    /// In the notation of strftime.
    Pattern(Box<str>),
}

/// The formats without `time_formats`, those of Garenne's own readings.
const DEFAULT: [&str; 2] = ["rfc3339", "unix"];

/// Why a number has no time in a format for texts.
const NOT_A_TEXT: &str = "not a text";

impl TimeFormats {
    /// Parses the fields `time_formats` and `zone`. An error names the field.
    pub(crate) fn parse(formats: &[String], zone: Option<&str>) -> Result<Self, String> {
        let default = DEFAULT.map(str::to_owned);
        let formats = if formats.is_empty() { &default } else { formats };
        if formats.len() > MAX_PARTS {
            return Err(format!("time_formats: {} formats; at most {MAX_PARTS}", formats.len()));
        }
        let zone = zone.map(parse_zone).transpose().map_err(|error| format!("zone: {error}"))?;
        let formats = formats.iter().map(|format| TimeFormat::parse(format, zone.is_some()));
        let formats = formats.collect::<Result<_, _>>().map_err(|error| format!("time_formats: {error}"))?;
        Ok(Self { formats, zone })
    }

    pub(crate) fn read(&self, value: &Value<'_>) -> Result<Timestamp, String> {
        let mut problem = None;
        for format in &self.formats {
            match format.read(value, self.zone.as_ref()) {
                Ok(time) => return Ok(time),
                // Of several formats the first one is the one that the user expects most, unless it is for texts only.
                Err(error) => problem = problem.filter(|first| first != NOT_A_TEXT).or(Some(error)),
            }
        }
        Err(format!("{value} is {}", problem.unwrap_or_default()))
    }
}

impl TimeFormat {
    fn parse(text: &str, has_zone: bool) -> Result<Self, String> {
        Ok(match text {
            "rfc3339" => Self::Rfc3339,
            "unix" => Self::Unix { per_second: 1 },
            "unix-ms" => Self::Unix { per_second: 1_000 },
            "unix-us" => Self::Unix { per_second: 1_000_000 },
            "unix-ns" => Self::Unix { per_second: 1_000_000_000 },
            pattern if pattern.contains('%') => {
                let parsed = strtime::format(pattern, jiff::Timestamp::UNIX_EPOCH)
                    .and_then(|text| BrokenDownTime::parse(pattern, text))
                    .map_err(|error| format!("{pattern:?} cannot be used: {error}"))?;
                let is_absolute = parsed.offset().is_some() || parsed.timestamp().is_some();
                if !is_absolute && !has_zone {
                    return Err(format!("{pattern:?} has no UTC offset; add %z, or set `zone`"));
                }
                if !is_absolute && parsed.to_datetime().is_err() {
                    return Err(format!("{pattern:?} has no date and time of day"));
                }
                Self::Pattern(pattern.into())
            }
            other => {
                return Err(format!(
                    "{other:?} is unknown; expected rfc3339, unix, unix-ms, unix-us, unix-ns or a pattern such as \"%d.%m.%Y %H:%M:%S %z\""
                ));
            }
        })
    }

    fn read(&self, value: &Value<'_>, zone: Option<&TimeZone>) -> Result<Timestamp, String> {
        match (self, value) {
            (Self::Unix { per_second }, value) => unix(value, *per_second),
            (Self::Rfc3339, Value::Text(text)) => match (Timestamp::parse(text), zone) {
                (Err(BadTimestamp::NoOffset), Some(zone)) => {
                    let local = text.parse::<DateTime>().map_err(|_| BadTimestamp::Form.to_string())?;
                    in_zone(local, zone)
                }
                (time, _) => time.map_err(|error| error.to_string()),
            },
            (Self::Pattern(pattern), Value::Text(text)) => {
                let parsed = BrokenDownTime::parse(&**pattern, text.trim().as_bytes())
                    .map_err(|_| format!("not a time in the format {pattern:?}"))?;
                if parsed.offset().is_some() || parsed.timestamp().is_some() {
                    return parsed.to_timestamp().map_err(|error| error.to_string()).and_then(rounded);
                }
                let local = parsed.to_datetime().map_err(|error| error.to_string())?;
                in_zone(local, zone.ok_or_else(|| BadTimestamp::NoOffset.to_string())?)
            }
            (Self::Rfc3339 | Self::Pattern(_), _) => Err(NOT_A_TEXT.to_owned()),
        }
    }
}

/// A Unix time. Whole numbers are exact to the microsecond.
fn unix(value: &Value<'_>, per_second: i64) -> Result<Timestamp, String> {
    let not_a_number = || "not a Unix time".to_owned();
    let whole = match value {
        Value::Integer(number) => Ok(*number),
        Value::Number(number) => Err(*number),
        Value::Text(text) => match text.trim().parse::<i64>() {
            Ok(number) => Ok(number),
            Err(_) => Err(text.trim().parse::<f64>().map_err(|_| not_a_number())?),
        },
        _ => return Err(not_a_number()),
    };
    let time = match whole {
        Ok(number) => {
            let micros = i128::from(number) * 1_000_000;
            let per_second = i128::from(per_second);
            let micros = (micros + per_second / 2).div_euclid(per_second);
            i64::try_from(micros).map_err(|_| BadTimestamp::Range).and_then(Timestamp::from_micros)
        }
        Err(number) => Timestamp::from_unix_seconds(number / per_second as f64),
    };
    time.map_err(|error| error.to_string())
}

/// A local time in a zone. The first one of an hour that occurs twice.
fn in_zone(local: DateTime, zone: &TimeZone) -> Result<Timestamp, String> {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
        return Err("skipped by the clock of the zone".to_owned());
    }
    ambiguous.earlier().map_err(|error| error.to_string()).and_then(rounded)
}

fn rounded(instant: jiff::Timestamp) -> Result<Timestamp, String> {
    let rounded = instant.round(jiff::Unit::Microsecond).map_err(|error| error.to_string())?;
    Timestamp::from_micros(rounded.as_microsecond()).map_err(|error| error.to_string())
}

/// An offset such as `+01:00` or `Z`, or a name such as `Europe/Berlin`.
fn parse_zone(text: &str) -> Result<TimeZone, String> {
    if text == "Z" {
        return Ok(TimeZone::UTC);
    }
    if text.starts_with(['+', '-']) {
        let offset = strtime::parse("%:z", text).ok().and_then(|parsed| parsed.offset());
        return offset
            .map(TimeZone::fixed)
            .ok_or_else(|| format!("{text:?} is not an offset such as +01:00"));
    }
    // The data is part of the program, so that a payload gives the same time on every host.
    TimeZoneDatabase::bundled()
        .get(text)
        .map_err(|_| format!("{text:?} is unknown; expected a name such as Europe/Berlin, or an offset"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(formats: &[&str], zone: Option<&str>, value: Value<'_>) -> Result<String, String> {
        let formats: Vec<_> = formats.iter().map(|format| (*format).to_owned()).collect();
        TimeFormats::parse(&formats, zone)?.read(&value).map(|time| time.to_string())
    }

    fn text(text: &str) -> Value<'_> {
        Value::Text(text.into())
    }

    #[test]
    fn every_format_is_read() {
        let nanoseconds = Value::Integer(1_763_600_000_123_456_789);
        for (format, zone, value, expected) in [
            ("rfc3339", None, text("2025-11-20T01:53:20+01:00"), "2025-11-20T00:53:20Z"),
            ("rfc3339", Some("Europe/Berlin"), text("2025-07-20T02:00:00"), "2025-07-20T00:00:00Z"),
            ("rfc3339", Some("Europe/Berlin"), text("2025-07-20T02:00:00Z"), "2025-07-20T02:00:00Z"),
            ("unix", None, Value::Integer(1_763_600_000), "2025-11-20T00:53:20Z"),
            ("unix", None, Value::Number(1_763_600_000.5), "2025-11-20T00:53:20.5Z"),
            ("unix-ms", None, Value::Integer(1_763_600_000_001), "2025-11-20T00:53:20.001Z"),
            ("unix-us", None, text("1763600000000001"), "2025-11-20T00:53:20.000001Z"),
            ("unix-ns", None, nanoseconds, "2025-11-20T00:53:20.123457Z"),
            ("unix", None, text("1763600000.25"), "2025-11-20T00:53:20.25Z"),
            ("unix-ms", None, Value::Integer(-1), "1969-12-31T23:59:59.999Z"),
            ("%d.%m.%Y %H:%M:%S %z", None, text("20.11.2025 01:53:20 +0100"), "2025-11-20T00:53:20Z"),
            ("%d.%m.%Y %H:%M", Some("-05:00"), text("20.11.2025 01:53"), "2025-11-20T06:53:00Z"),
            // A leap second is the second before it.
            ("rfc3339", None, text("2016-12-31T23:59:60.5Z"), "2016-12-31T23:59:59.5Z"),
            ("rfc3339", Some("Z"), text("2016-12-31T23:59:60.5"), "2016-12-31T23:59:59.5Z"),
            ("%F %H:%M:%S%.f", Some("Z"), text("2016-12-31 23:59:60.5"), "2016-12-31T23:59:59.5Z"),
            // The hour occurs twice, and the first one counts.
            ("%F %T", Some("Europe/Berlin"), text("2026-10-25 02:30:00"), "2026-10-25T00:30:00Z"),
        ] {
            assert_eq!(read(&[format], zone, value.clone()).as_deref(), Ok(expected), "{format} {value}");
        }
        assert_eq!(read(&["rfc3339", "unix-ms"], None, Value::Integer(0)).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(read(&[], None, Value::Integer(0)).unwrap(), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_value_in_none_of_the_formats_is_refused() {
        for (format, zone, value, expected) in [
            ("rfc3339", None, text("2025-11-20T01:53:20"), "no UTC offset"),
            ("rfc3339", None, Value::Integer(1), "1 is not a text"),
            ("unix", None, text("noon"), "\"noon\" is not a Unix time"),
            ("unix", None, text("inf"), "not a finite number"),
            ("unix", None, Value::Integer(i64::MAX), "outside the years"),
            ("unix", None, Value::Object, "an object is not a Unix time"),
            ("%F %T", Some("Europe/Berlin"), text("2026-03-29 02:30:00"), "skipped by the clock of the zone"),
            ("%F %T", Some("Z"), text("29.3.2026"), "not a time in the format \"%F %T\""),
        ] {
            let error = read(&[format], zone, value).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn invalid_formats_and_zones_are_refused() {
        for (format, zone, expected) in [
            ("iso", None, "time_formats: \"iso\" is unknown; expected rfc3339, unix,"),
            ("%F %T", None, "time_formats: \"%F %T\" has no UTC offset; add %z, or set `zone`"),
            ("%H:%M", Some("Z"), "time_formats: \"%H:%M\" has no date and time of day"),
            ("%!", None, "time_formats: \"%!\" cannot be used"),
            ("unix", Some("Mars/Olympus"), "zone: \"Mars/Olympus\" is unknown"),
            ("unix", Some("+1"), "zone: \"+1\" is not an offset such as +01:00"),
        ] {
            let error = read(&[format], zone, Value::Null).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(read(&["unix"; 17], None, Value::Null).unwrap_err().ends_with("17 formats; at most 16"));
    }
}
