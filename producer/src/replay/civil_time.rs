//! Parses dates and times of day in the formats of recordings.

use clap::ValueEnum;
use derive_more::Display;
use garenne_protocol::sensor::Timestamp;
use jiff::{
    SignedDuration,
    civil::{Date, DateTime, Time},
    fmt::strtime::{self, BrokenDownTime},
    tz::{Offset, TimeZone},
};
use serde::{Deserialize, Serialize};

use super::{
    moment::{Moment, NoMoment},
    named_date::{named_date, without_weekday},
};

/// The order of a date that has only numbers and does not start with a year of four digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DateOrder {
    /// Day, month, year.
    #[default]
    Dmy,
    /// Month, day, year.
    Mdy,
    /// Year of two digits, month, day.
    Ymd,
}

impl DateOrder {
    /// The order in words, for a message.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Dmy => "day first",
            Self::Mdy => "month first",
            Self::Ymd => "year first",
        }
    }
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
    /// A date and the time since its midnight.
    pub(super) fn of(date: Date, clock: SignedDuration) -> Self {
        Self { date: Some(date), clock: Some(clock), offset: None }
    }

    /// Combines a date and a time of day from two columns.
    pub(super) fn joined(self, other: Self) -> Self {
        Self {
            date: self.date.or(other.date),
            clock: self.clock.or(other.clock),
            offset: self.offset.or(other.offset),
        }
    }

    /// The moment. A date alone is its midnight; `zone` counts if no offset is given.
    pub(super) fn moment(self, zone: &TimeZone) -> Result<Moment, NoMoment> {
        let midnight = DateTime::from(self.date.ok_or(NoMoment::NotATime)?);
        let local = midnight.checked_add(self.clock.unwrap_or_default()).map_err(|_| NoMoment::NotATime)?;
        match self.offset {
            Some(offset) => Moment::at(offset, local),
            None => Moment::in_zone(zone, local),
        }
    }
}

/// Characters between a date of numbers and a time of day.
const DATE_ENDS: [char; 4] = ['T', 't', ' ', '_'];
/// Characters between the parts of a date.
const DATE_SEPARATORS: [char; 3] = ['-', '/', '.'];

/// Parses a date, a time of day, or both.
pub(super) fn civil(text: &str, order: DateOrder) -> Option<CivilTime> {
    let text = text.trim();
    let with_clock = |date: Date, rest: &str| match rest.trim() {
        "" => Some(CivilTime { date: Some(date), clock: None, offset: None }),
        rest => Some(CivilTime { date: Some(date), ..time_of_day(rest)? }),
    };
    if let Some((date, rest)) = named_date(text) {
        return with_clock(date, &rest);
    }
    let (date_text, rest) = numeric_date(text);
    match date(date_text, order) {
        Some(date) => with_clock(date, rest),
        None => time_of_day(text),
    }
}

/// Parses the texts of several columns, which have a date and a time of day in any order.
pub(super) fn civil_of_columns(texts: &[&str], order: DateOrder) -> Option<CivilTime> {
    let mut times: Vec<CivilTime> = texts.iter().map(|text| civil(text, order)).collect::<Option<_>>()?;
    // `10.03.04` is a time of day beside a date.
    if times.iter().filter(|time| time.date.is_some()).count() > 1 {
        for (time, text) in times.iter_mut().zip(texts) {
            *time = time_of_day(text).unwrap_or(*time);
        }
    }
    times.into_iter().reduce(CivilTime::joined)
}

/// Whether [`civil`] reads the date by its [`DateOrder`]: it has only numbers, and does not start with a year of four
/// digits.
pub(super) fn depends_on_order(text: &str) -> bool {
    let (date, _) = numeric_date(text.trim());
    let first = date.split(DATE_SEPARATORS).next().unwrap_or_default();
    !date.contains(char::is_alphabetic)
        && first.len() < date.len()
        && (1..=2).contains(&first.len())
        && first.bytes().all(|byte| byte.is_ascii_digit())
}

/// Splits a text into a date of numbers and the time of day after it.
fn numeric_date(text: &str) -> (&str, &str) {
    let text = without_weekday(text);
    text.split_once(DATE_ENDS)
        .filter(|(date, _)| date.starts_with(|c: char| c.is_ascii_digit()))
        .unwrap_or((text, ""))
}

fn date(text: &str, order: DateOrder) -> Option<Date> {
    if text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Date::strptime("%Y%m%d", text).ok();
    }
    let parts: Vec<&str> = text.trim_end_matches(',').split(DATE_SEPARATORS).collect();
    let [first, _, third] = parts[..] else { return None };
    let year = if third.len() <= 2 { "%y" } else { "%Y" };
    let format = match order {
        _ if first.len() == 4 => "%Y-%m-%d".to_owned(),
        DateOrder::Dmy => format!("%d-%m-{year}"),
        DateOrder::Mdy => format!("%m-%d-{year}"),
        DateOrder::Ymd if third.len() <= 2 => "%y-%m-%d".to_owned(),
        DateOrder::Ymd => return None,
    };
    Date::strptime(format, parts.join("-")).ok()
}

/// `HH:MM`, `HH:MM:SS.f`, `HH.MM.SS`, `HHMM`, `HHMMSS`, with `AM`/`PM` and an offset.
pub(super) fn time_of_day(text: &str) -> Option<CivilTime> {
    let text = text.trim();
    let text = text.strip_suffix("Uhr").map_or(text, str::trim_end);
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
#[derive(Display)]
pub(super) struct Format(String);

impl Format {
    pub(super) fn parse(format: &str) -> Result<Self, String> {
        // A time that was printed in a valid format can be parsed in it.
        strtime::format(format, jiff::Timestamp::UNIX_EPOCH)
            .and_then(|text| strtime::parse(format, text))
            .map(|_| Self(format.to_owned()))
            .map_err(|error| format!("time format {format:?} cannot be used: {error}"))
    }

    /// The moment of a text in this format; `zone` counts if it has no offset.
    pub(super) fn moment(&self, text: &str, zone: &TimeZone) -> Result<Moment, NoMoment> {
        let parsed = BrokenDownTime::parse(&self.0, text.trim()).map_err(|_| NoMoment::NotATime)?;
        if parsed.offset().is_some() || parsed.timestamp().is_some() {
            return Moment::of(parsed.to_timestamp().map_err(|_| NoMoment::NotATime)?);
        }
        Moment::in_zone(zone, parsed.to_datetime().map_err(|_| NoMoment::NotATime)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, order: DateOrder) -> String {
        let moment = civil(text, order).and_then(|civil| civil.moment(&TimeZone::UTC).ok());
        moment.map_or_else(|| "none".to_owned(), |moment| moment.first().to_string())
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
            ("2016-12-31T23:59:60.5Z", "2016-12-31T23:59:59.5Z"),
            ("2004-03-10 0630 pm", "2004-03-10T18:30:00Z"),
            ("2004-03-10 0:30 AM", "2004-03-10T00:30:00Z"),
            ("10-October-2004 18:00", "2004-10-10T18:00:00Z"),
            ("August 1, 2004 6:05 PM", "2004-08-01T18:05:00Z"),
            ("Wed, 10 Mar 2004 18:30:00 +0100", "2004-03-10T17:30:00Z"),
            ("Wed Mar 10 18:30:00 2004", "2004-03-10T18:30:00Z"),
            ("Mittwoch, 10.03.2004, 18:30 Uhr", "2004-03-10T18:30:00Z"),
        ] {
            assert_eq!(read(text, DateOrder::Dmy), instant, "{text}");
        }
        assert_eq!(read("03/10/2004 1:02", DateOrder::Mdy), "2004-03-10T01:02:00Z");
        assert_eq!(read("04/03/10 1:02", DateOrder::Ymd), "2004-03-10T01:02:00Z");
        assert_eq!(read("04/03/2010", DateOrder::Ymd), "none");
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
        let zone = TimeZone::fixed(offset("+01:00").unwrap());
        let moment = date.joined(clock).moment(&zone).unwrap();
        assert_eq!(moment.first().to_string(), "2004-03-10T17:00:00Z");
    }

    #[test]
    fn a_time_of_day_that_may_be_a_date_is_read_beside_a_date() {
        let read = |texts: &[&str]| {
            let civil = civil_of_columns(texts, DateOrder::Dmy);
            civil.and_then(|civil| civil.moment(&TimeZone::UTC).ok()).map(|moment| moment.first().to_string())
        };
        assert_eq!(read(&["10/03/2004", "18.05.04"]).unwrap(), "2004-03-10T18:05:04Z");
        assert_eq!(read(&["18.05.04", "10/03/2004"]).unwrap(), "2004-03-10T18:05:04Z");
        assert_eq!(read(&["18.05.04"]).unwrap(), "2004-05-18T00:00:00Z");
    }

    #[test]
    fn unix_times_and_strftime_formats_are_parsed() {
        for number in [1_763_600_000.0, 1_763_600_000e3, 1_763_600_000e6, 1_763_600_000e9] {
            assert_eq!(epoch(number).unwrap().to_string(), "2025-11-20T00:53:20Z");
        }
        let read = |format: &str, text: &str, zone: &str| {
            let zone = TimeZone::fixed(offset(zone).unwrap());
            let moment = Format::parse(format).unwrap().moment(text, &zone);
            moment.map_or("none".to_owned(), |moment| moment.first().to_string())
        };
        assert_eq!(read("%d/%m/%Y %H.%M.%S", "10/03/2004 18.00.00", "Z"), "2004-03-10T18:00:00Z");
        assert_eq!(read("%d/%m/%Y %H.%M.%S", "2004-03-10", "Z"), "none");
        assert_eq!(read("%d.%m.%y", "10.03.04", "-0530"), "2004-03-10T05:30:00Z");
        assert_eq!(
            read("%F %H:%M:%S%.f %z", "2004-03-10 18:00:00.5 +0100", "-0530"),
            "2004-03-10T17:00:00.5Z"
        );
        assert_eq!(read("%s", "1763600000", "-0530"), "2025-11-20T00:53:20Z");
        assert_eq!(
            Format::parse("%d %!").err().unwrap().split(':').next(),
            Some("time format \"%d %!\" cannot be used")
        );
    }
}
