//! Parses dates and times of day in the formats of recordings.

use garenne_protocol::sensor::Timestamp;
use jiff::{
    SignedDuration, Unit,
    civil::{Date, DateTime, Time},
    fmt::strtime::{self, BrokenDownTime},
    tz::Offset,
};

/// The order of a date that does not start with the year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum DateOrder {
    /// Day, month, year.
    #[default]
    Dmy,
    /// Month, day, year.
    Mdy,
}

/// A date, a time of day, or both, with a UTC offset if one is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CivilTime {
    pub(super) date: Option<Date>,
    /// Time since midnight; a day for `24:00`.
    pub(super) clock: Option<SignedDuration>,
    offset: Option<Offset>,
}

impl CivilTime {
    /// Combines a date and a time of day from two columns.
    pub(super) fn joined(self, other: Self) -> Self {
        Self {
            date: self.date.or(other.date),
            clock: self.clock.or(other.clock),
            offset: self.offset.or(other.offset),
        }
    }

    /// The instant. A date alone is its midnight; `zone` is the offset if none is given.
    pub(super) fn instant(self, zone: Offset) -> Option<Timestamp> {
        let midnight = DateTime::from(self.date?);
        let moment = midnight.checked_add(self.clock.unwrap_or_default()).ok()?;
        timestamp(self.offset.unwrap_or(zone).to_timestamp(moment).ok()?)
    }
}

/// Rounds to the microseconds of a [`Timestamp`].
fn timestamp(instant: jiff::Timestamp) -> Option<Timestamp> {
    Timestamp::from_micros(instant.round(Unit::Microsecond).ok()?.as_microsecond()).ok()
}

/// Characters between a date and a time of day.
const DATE_ENDS: [char; 4] = ['T', 't', ' ', '_'];
/// Characters between the parts of a date.
const DATE_SEPARATORS: [char; 3] = ['-', '/', '.'];

/// Parses a date, a time of day, or both.
pub(super) fn civil(text: &str, order: DateOrder) -> Option<CivilTime> {
    let text = text.trim();
    let (date_text, clock_text) = match text.split_once(DATE_ENDS) {
        Some((before, after)) if before.starts_with(|c: char| c.is_ascii_digit()) => (before, Some(after)),
        _ => (text, None),
    };
    match (date(date_text, order), clock_text) {
        (Some(date), Some(text)) => Some(CivilTime { date: Some(date), ..clock(text)? }),
        (date @ Some(_), None) => Some(CivilTime { date, clock: None, offset: None }),
        (None, _) => clock(text),
    }
}

/// Whether [`civil`] reads the date by its [`DateOrder`]: it has only numbers, and does not start with the year.
pub(super) fn depends_on_order(text: &str) -> bool {
    let date = text.trim().split(DATE_ENDS).next().unwrap_or_default();
    !date.contains(char::is_alphabetic) && date.find(DATE_SEPARATORS).is_some_and(|at| at <= 2)
}

fn date(text: &str, order: DateOrder) -> Option<Date> {
    if text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Date::strptime("%Y%m%d", text).ok();
    }
    let is_name = |part: &str| part.chars().all(char::is_alphabetic);
    // Of a month's name only the first three letters count.
    let parts: Vec<&str> = text
        .split(DATE_SEPARATORS)
        .map(|part| part.get(..3).filter(|_| is_name(part)).unwrap_or(part))
        .collect();
    let [first, second, third] = parts[..] else { return None };
    let (month, year) = (
        if is_name(first) || is_name(second) { "%b" } else { "%m" },
        if third.len() <= 2 { "%y" } else { "%Y" },
    );
    let format = match order {
        _ if first.len() == 4 => format!("%Y-{month}-%d"),
        DateOrder::Dmy if !is_name(first) => format!("%d-{month}-{year}"),
        DateOrder::Mdy if is_name(second) => format!("%d-{month}-{year}"),
        _ => format!("{month}-%d-{year}"),
    };
    Date::strptime(format, parts.join("-")).ok()
}

/// `HH:MM`, `HH:MM:SS.f`, `HH.MM.SS`, `HHMM`, `HHMMSS`, with `AM`/`PM` and an offset.
fn clock(text: &str) -> Option<CivilTime> {
    let text = text.trim();
    let (text, offset) = match text.find(['Z', 'z', 'U', 'G', '+', '-']) {
        Some(at) => (text[..at].trim_end(), Some(offset(&text[at..])?)),
        None => (text, None),
    };
    let mut text = text.replace(',', ".");
    // `18.30` is a number, not a time of day.
    if !text.contains(':') && text.matches('.').count() >= 2 {
        text = text.replacen('.', ":", 2);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let hour: u8 = text.get(..digits.min(2))?.parse().ok()?;
    let next_day = hour == 24;
    if next_day {
        text.replace_range(..2, "00");
    }
    let formats = match digits {
        _ if hour > 12 && text.ends_with(['m', 'M']) => return None,
        1 | 2 => ["%H:%M", "%H:%M:%S%.f", "%H:%M %p", "%H:%M:%S%.f %p"].as_slice(),
        4 => &["%H%M", "%H%M %p"],
        6 => &["%H%M%S", "%H%M%S %p"],
        _ => return None,
    };
    let time = formats.iter().find_map(|format| Time::strptime(format, &text).ok())?;
    let clock = match next_day {
        true if time == Time::midnight() => SignedDuration::from_hours(24),
        true => return None,
        false => time.duration_since(Time::midnight()),
    };
    Some(CivilTime { date: None, clock: Some(clock), offset })
}

/// `+02:00`, `+0200`, `+02`, `Z`, `UTC` or `GMT`.
pub(super) fn offset(text: &str) -> Option<Offset> {
    if matches!(text, "Z" | "z" | "UTC" | "GMT") {
        return Some(Offset::UTC);
    }
    let mut text = text.replace(':', "");
    if text.len() == 3 {
        text.push_str("00");
    }
    strtime::parse("%z", text).ok()?.offset()
}

/// Converts a Unix time in seconds, milliseconds, microseconds or nanoseconds, by its magnitude.
pub(super) fn epoch(number: f64) -> Option<Timestamp> {
    let seconds = match number.abs() {
        size if size >= 1e17 => number / 1e9,
        size if size >= 1e14 => number / 1e6,
        size if size >= 1e11 => number / 1e3,
        _ => number,
    };
    Timestamp::from_unix_seconds(seconds).ok()
}

/// A format that the user gave, in the notation of `strftime`.
pub(super) struct Format(String);

impl Format {
    pub(super) fn parse(format: &str) -> Result<Self, String> {
        // A time that was printed in a valid format can be parsed in it.
        strtime::format(format, jiff::Timestamp::UNIX_EPOCH)
            .and_then(|text| strtime::parse(format, text))
            .map(|_| Self(format.to_owned()))
            .map_err(|error| format!("time format {format:?} cannot be used: {error}"))
    }

    pub(super) fn read(&self, text: &str, zone: Offset) -> Option<Timestamp> {
        let mut parsed = BrokenDownTime::parse(&self.0, text.trim()).ok()?;
        parsed.set_offset(parsed.offset().or(Some(zone)));
        timestamp(parsed.to_timestamp().ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, order: DateOrder) -> String {
        let instant = civil(text, order).and_then(|civil| civil.instant(Offset::UTC));
        instant.map_or_else(|| "none".to_owned(), |instant| instant.to_string())
    }

    #[test]
    fn the_formats_of_real_recordings_are_parsed() {
        for (text, instant) in [
            ("2013-07-04 00:00:00", "2013-07-04T00:00:00Z"),
            ("2010/01/01 23:00", "2010-01-01T23:00:00Z"),
            ("2026-05-04T05:00:03Z", "2026-05-04T05:00:03Z"),
            ("2026-05-04T05:00:03.25+02:00", "2026-05-04T03:00:03.25Z"),
            ("2026-05-04 05:00:03 -0530", "2026-05-04T10:30:03Z"),
            ("10/03/2004", "2004-03-10T00:00:00Z"),
            ("10.03.2004 18:30", "2004-03-10T18:30:00Z"),
            ("10/03/2004 18.00.00", "2004-03-10T18:00:00Z"),
            ("10-Mar-2004 6:05:00 PM", "2004-03-10T18:05:00Z"),
            ("10/03/04 12:00 am", "2004-03-10T00:00:00Z"),
            ("20040310 1830", "2004-03-10T18:30:00Z"),
            ("20040310T183059", "2004-03-10T18:30:59Z"),
            ("2004-03-10 24:00", "2004-03-11T00:00:00Z"),
            ("2004-03-10 18:30 UTC", "2004-03-10T18:30:00Z"),
            ("2004-Mar-10 18:30GMT", "2004-03-10T18:30:00Z"),
            ("Sept/1/2004", "2004-09-01T00:00:00Z"),
            ("1-january-99 0:05:09,25", "1999-01-01T00:05:09.25Z"),
            ("2004-03-10 12:59:60 PM +02", "2004-03-10T10:59:59Z"),
            ("2004-03-10 0630 pm", "2004-03-10T18:30:00Z"),
            ("2004-03-10 0:30 AM", "2004-03-10T00:30:00Z"),
        ] {
            assert_eq!(read(text, DateOrder::Dmy), instant, "{text}");
        }
        assert_eq!(read("03/10/2004 1:02", DateOrder::Mdy), "2004-03-10T01:02:00Z");
    }

    #[test]
    fn text_that_is_not_a_time_is_refused() {
        for text in [
            "",
            "18.5",
            "21",
            "183",
            "2004-13-01",
            "31/02/2004",
            "2004-03-10 25:00",
            "2004-03-10 24:01",
            "2004-03-10 18:30 AM",
            "noon",
            "1.2.3.4",
            "-5",
        ] {
            assert_eq!(read(text, DateOrder::Dmy), "none", "{text}");
        }
    }

    #[test]
    fn date_and_time_of_day_from_two_columns_are_combined() {
        let date = civil("10/03/2004", DateOrder::Dmy).unwrap();
        let clock = civil("18.00.00", DateOrder::Dmy).unwrap();
        let zone = offset("+01:00").unwrap();
        assert_eq!(date.joined(clock).instant(zone).unwrap().to_string(), "2004-03-10T17:00:00Z");
    }

    #[test]
    fn unix_times_and_strftime_formats_are_parsed() {
        for number in [1_763_600_000.0, 1_763_600_000e3, 1_763_600_000e6, 1_763_600_000e9] {
            assert_eq!(epoch(number).unwrap().to_string(), "2025-11-20T00:53:20Z");
        }
        let format = Format::parse("%d/%m/%Y %H.%M.%S").unwrap();
        assert_eq!(
            format.read("10/03/2004 18.00.00", Offset::UTC).unwrap().to_string(),
            "2004-03-10T18:00:00Z"
        );
        assert!(format.read("2004-03-10", Offset::UTC).is_none());
        let date = Format::parse("%d.%m.%y").unwrap();
        let zone = offset("-0530").unwrap();
        assert_eq!(date.read("10.03.04", zone).unwrap().to_string(), "2004-03-10T05:30:00Z");
        let with_offset = Format::parse("%F %H:%M:%S%.f %z").unwrap();
        let read = with_offset.read("2004-03-10 18:00:00.5 +0100", zone).unwrap();
        assert_eq!(read.to_string(), "2004-03-10T17:00:00.5Z");
        assert_eq!(
            Format::parse("%d %!").err().unwrap().split(':').next(),
            Some("time format \"%d %!\" cannot be used")
        );
    }
}
