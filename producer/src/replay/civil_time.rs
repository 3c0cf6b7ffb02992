//! Parses dates and times of day in the formats of recordings.

use garenne_protocol::sensor::Timestamp;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

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
    pub(super) clock: Option<Time>,
    pub(super) offset: Option<UtcOffset>,
    /// Set for `24:00`, which is midnight of the next day.
    next_day: bool,
}

impl CivilTime {
    /// Combines a date and a time of day from two columns.
    pub(super) fn joined(self, other: Self) -> Self {
        Self {
            date: self.date.or(other.date),
            clock: self.clock.or(other.clock),
            offset: self.offset.or(other.offset),
            next_day: self.next_day || other.next_day,
        }
    }

    /// The instant. A date alone is its midnight; `zone` is the offset if none is given.
    pub(super) fn instant(self, zone: UtcOffset) -> Option<Timestamp> {
        let mut date = self.date?;
        if self.next_day {
            date = date.next_day()?;
        }
        let moment = PrimitiveDateTime::new(date, self.clock.unwrap_or(Time::MIDNIGHT));
        Some(moment.assume_offset(self.offset.unwrap_or(zone)).into())
    }
}

/// Parses a date, a time of day, or both.
pub(super) fn civil(text: &str, order: DateOrder) -> Option<CivilTime> {
    let text = text.trim();
    let (date_text, clock_text) = match text.split_once(['T', 't', ' ', '_']) {
        Some((before, after)) if before.starts_with(|c: char| c.is_ascii_digit()) => (before, after.trim()),
        _ => (text, ""),
    };
    if let Some(date) = date(date_text, order) {
        if clock_text.is_empty() {
            return (date_text.len() == text.len()).then_some(CivilTime {
                date: Some(date),
                clock: None,
                offset: None,
                next_day: false,
            });
        }
        return clock(clock_text).map(|clock| CivilTime { date: Some(date), ..clock });
    }
    clock(text)
}

/// The three numbers of a date in their written order.
pub(super) fn date_numbers(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.split(['-', '/', '.']);
    let mut number = || -> Option<u32> {
        let part = parts.next()?;
        match part.parse() {
            Ok(number) if part.len() <= 4 => Some(number),
            _ => month_name(part),
        }
    };
    let numbers = [number()?, number()?, number()?];
    parts.next().is_none().then_some(numbers)
}

fn date(text: &str, order: DateOrder) -> Option<Date> {
    if text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let part = |range: std::ops::Range<usize>| text[range].parse().ok();
        return calendar(part(0..4)?, part(4..6)?, part(6..8)?);
    }
    let [first, second, third] = date_numbers(text)?;
    let first_len = text.find(['-', '/', '.'])?;
    if first_len == 4 {
        return calendar(first, second, third);
    }
    let named = |index: usize| {
        text.split(['-', '/', '.']).nth(index).is_some_and(|part| part.starts_with(char::is_alphabetic))
    };
    let year = if third >= 100 { third } else { third + if third < 70 { 2000 } else { 1900 } };
    match order {
        _ if named(0) => calendar(year, first, second),
        _ if named(1) => calendar(year, second, first),
        DateOrder::Dmy => calendar(year, second, first),
        DateOrder::Mdy => calendar(year, first, second),
    }
}

fn calendar(year: u32, month: u32, day: u32) -> Option<Date> {
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()
}

fn month_name(text: &str) -> Option<u32> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let start = text.get(..3)?.to_ascii_lowercase();
    let at = MONTHS.iter().position(|month| *month == start)?;
    text.chars().all(char::is_alphabetic).then_some(at as u32 + 1)
}

/// `HH:MM`, `HH:MM:SS.f`, `HH.MM.SS`, `HHMM`, `HHMMSS`, with `AM`/`PM` and an offset.
fn clock(text: &str) -> Option<CivilTime> {
    let (text, offset) = split_offset(text.trim())?;
    let upper = text.to_ascii_uppercase();
    let (text, afternoon) = match (upper.strip_suffix("PM"), upper.strip_suffix("AM")) {
        (Some(rest), _) => (rest.trim_end(), Some(true)),
        (_, Some(rest)) => (rest.trim_end(), Some(false)),
        _ => (upper.as_str(), None),
    };
    let (hour, minute, second) = clock_numbers(text)?;
    let hour = match (hour, afternoon) {
        (12, Some(false)) => 0,
        (hour @ 1..=11, Some(true)) => hour + 12,
        (hour @ 0..=12, _) => hour,
        (_, Some(_)) => return None,
        (hour, None) => hour,
    };
    let next_day = hour == 24 && minute == 0 && second == 0.0;
    let hour = if next_day { 0 } else { hour };
    // A leap second becomes the end of its minute.
    let micros = ((second * 1e6).round() as u32).min(59_999_999);
    let clock = Time::from_hms_micro(hour, minute, (micros / 1_000_000) as u8, micros % 1_000_000).ok()?;
    Some(CivilTime { date: None, clock: Some(clock), offset, next_day })
}

fn clock_numbers(text: &str) -> Option<(u8, u8, f64)> {
    if matches!(text.len(), 4 | 6) && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let second = if text.len() == 6 { text[4..].parse().ok()? } else { 0.0 };
        return Some((text[..2].parse().ok()?, text[2..4].parse().ok()?, second));
    }
    let mark = if text.contains(':') { ':' } else { '.' };
    let mut parts = text.splitn(3, mark);
    let hour = parts.next().filter(|part| (1..=2).contains(&part.len()))?.parse().ok()?;
    let minute = parts.next().filter(|part| part.len() == 2)?.parse().ok()?;
    let second = match parts.next() {
        // `18.30` is a number, not a time of day.
        None if mark == '.' => return None,
        None => 0.0,
        Some(text) => {
            let text = text.replace(',', ".");
            let shape = text.starts_with(|c: char| c.is_ascii_digit())
                && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            shape.then(|| text.parse::<f64>().ok()).flatten().filter(|second| *second < 61.0)?
        }
    };
    Some((hour, minute, second))
}

/// Splits `Z`, `UTC`, `+02:00`, `+0200` or `-05` from the end.
fn split_offset(text: &str) -> Option<(&str, Option<UtcOffset>)> {
    for zulu in ["Z", "z", "UTC", "GMT"] {
        if let Some(rest) = text.strip_suffix(zulu) {
            return Some((rest.trim_end(), Some(UtcOffset::UTC)));
        }
    }
    match text.rfind(['+', '-']) {
        None => Some((text, None)),
        Some(at) => Some((text[..at].trim_end(), Some(offset(&text[at..])?))),
    }
}

/// `+02:00`, `+0200`, `+02` or `Z`.
pub(super) fn offset(text: &str) -> Option<UtcOffset> {
    if matches!(text, "Z" | "z" | "UTC") {
        return Some(UtcOffset::UTC);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let hours: i8 = digits[..2].parse().ok()?;
    let minutes: i8 = digits.get(2..).filter(|rest| !rest.is_empty()).map_or(Ok(0), str::parse).ok()?;
    UtcOffset::from_hms(sign * hours, sign * minutes, 0).ok()
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

/// By a format the user gave, in the notation of `strftime`.
pub(super) struct Format(time::format_description::OwnedFormatItem);

impl Format {
    pub(super) fn parse(format: &str) -> Result<Self, String> {
        time::format_description::parse_strftime_owned(format)
            .map(Self)
            .map_err(|error| format!("time format {format:?} cannot be used: {error}"))
    }

    pub(super) fn read(&self, text: &str, zone: UtcOffset) -> Option<Timestamp> {
        let text = text.trim();
        if let Ok(moment) = OffsetDateTime::parse(text, &self.0) {
            return Some(moment.into());
        }
        let moment = PrimitiveDateTime::parse(text, &self.0)
            .or_else(|_| Date::parse(text, &self.0).map(Date::midnight))
            .ok()?;
        Some(moment.assume_offset(zone).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, order: DateOrder) -> String {
        let instant = civil(text, order).and_then(|civil| civil.instant(UtcOffset::UTC));
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
        ] {
            assert_eq!(read(text, DateOrder::Dmy), instant, "{text}");
        }
        assert_eq!(read("03/10/2004 1:02", DateOrder::Mdy), "2004-03-10T01:02:00Z");
    }

    #[test]
    fn text_that_is_not_a_time_is_refused() {
        for text in
            ["", "18.5", "21", "2004-13-01", "31/02/2004", "2004-03-10 25:00", "noon", "1.2.3.4", "-5"]
        {
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
            format.read("10/03/2004 18.00.00", UtcOffset::UTC).unwrap().to_string(),
            "2004-03-10T18:00:00Z"
        );
        assert!(format.read("2004-03-10", UtcOffset::UTC).is_none());
    }
}
