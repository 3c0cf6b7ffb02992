//! The length of buckets: seconds, or days and months of a calendar in a zone.

use std::time::Duration;

use jiff::{
    ToSpan, civil,
    tz::{Offset, TimeZone},
};
use time::OffsetDateTime;

/// Buckets of an answer, at most.
const MAX_BUCKETS: i64 = 10_000;
/// 2001-01-01, a Monday: where buckets are counted from.
const ORIGIN: i64 = 978_307_200;
const ORIGIN_DATE: civil::Date = civil::date(2001, 1, 1);
const HOUR: i64 = 3_600;

/// The length of buckets.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Counted from 2001-01-01 UTC.
    Seconds(i64),
    /// Days or months, each from midnight to midnight in a zone.
    Calendar { text: String, length: Length, zone: TimeZone },
}

/// A number of days or months.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Days(i64),
    Months(i64),
}

/// The table that buckets are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Readings,
    /// Hourly rollups, if all buckets begin with an hour in UTC.
    Hours,
    /// Daily rollups, if all buckets begin with a day in UTC.
    Days,
}

/// The buckets that have a part of a period.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Buckets {
    Seconds {
        from: OffsetDateTime,
        to: OffsetDateTime,
        step: i64,
    },
    /// The begin of each bucket, and the end of the last.
    Calendar {
        text: String,
        zone: String,
        times: Vec<OffsetDateTime>,
    },
}

impl Step {
    /// Parses the parameters `step` and `zone`. The error names the parameter and the allowed values.
    pub(super) fn parse(step: &str, zone: Option<&str>) -> Result<Self, String> {
        let expected =
            "expected a duration of whole seconds such as 5m, 1h or 1d, or months or years such as 1month";
        let invalid = || format!("step: {step:?}; {expected}");
        let (number, unit) = step.split_at(step.find(|c: char| !c.is_ascii_digit()).unwrap_or(step.len()));
        let count = |times: i64| {
            let number = number.parse().ok().filter(|number: &i64| (1..=MAX_BUCKETS).contains(number));
            number.map(|number| number * times).ok_or_else(invalid)
        };
        let length = match unit.trim() {
            "M" | "month" | "months" => Length::Months(count(1)?),
            "y" | "yr" | "year" | "years" => Length::Months(count(12)?),
            "d" | "day" | "days" if zone.is_some() => Length::Days(count(1)?),
            "w" | "week" | "weeks" if zone.is_some() => Length::Days(count(7)?),
            _ if zone.is_some() => {
                return Err(format!("zone: needs a step of days, weeks, months or years, not {step:?}"));
            }
            // Mixed lengths, whose months would be of 30.44 days.
            unit if unit.contains(['M', 'y']) || unit.contains("mon") => return Err(invalid()),
            _ => {
                let duration: Duration = humantime::parse_duration(step).map_err(|_| invalid())?;
                let seconds = i64::try_from(duration.as_secs()).ok();
                let seconds = seconds.filter(|seconds| *seconds > 0 && duration.subsec_nanos() == 0);
                return seconds.map(Self::Seconds).ok_or_else(invalid);
            }
        };
        Ok(Self::Calendar { text: step.to_owned(), length, zone: time_zone(zone.unwrap_or("UTC"))? })
    }

    /// The buckets that have a part of a period. They may not be too many, nor reach beyond the years 0000 to 9999.
    pub(super) fn buckets(&self, from: OffsetDateTime, to: OffsetDateTime) -> Result<Buckets, String> {
        match self {
            Self::Seconds(step) => whole_buckets(from, to, *step),
            Self::Calendar { text, length, zone } => {
                let times = calendar_times(from, to, *length, zone)
                    .ok_or_else(|| format!("step: buckets of {text} reach beyond the years 0000 to 9999"))?;
                if times.len() as i64 - 1 > MAX_BUCKETS {
                    return Err(too_many(text, &format!("more than {MAX_BUCKETS}")));
                }
                let zone = zone.iana_name().map_or_else(|| offset_text(zone), str::to_owned);
                Ok(Buckets::Calendar { text: text.clone(), zone, times })
            }
        }
    }
}

impl Buckets {
    /// The begin of the first bucket and the end of the last.
    pub(super) fn period(&self) -> (OffsetDateTime, OffsetDateTime) {
        match self {
            Self::Seconds { from, to, .. } => (*from, *to),
            Self::Calendar { times, .. } => (times[0], times[times.len() - 1]),
        }
    }

    pub(super) fn source(&self) -> Source {
        let begin_with = |seconds: i64| match self {
            Self::Seconds { step, .. } => step % seconds == 0,
            Self::Calendar { times, .. } => times.iter().all(|time| time.unix_timestamp() % seconds == 0),
        };
        match () {
            () if begin_with(24 * HOUR) => Source::Days,
            () if begin_with(HOUR) => Source::Hours,
            () => Source::Readings,
        }
    }
}

/// A zone of the IANA database, or an offset such as `+01:00`.
fn time_zone(text: &str) -> Result<TimeZone, String> {
    // A plus sign that was not escaped is a space in a query.
    let text = text.replacen(' ', "+", usize::from(text.starts_with(' ')));
    let offset = || {
        let (hours, minutes) = text.strip_prefix(['+', '-'])?.split_once(':')?;
        let is_number = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        let (hours, minutes): (i32, i32) = (is_number(hours) && is_number(minutes))
            .then_some((hours.parse().ok()?, minutes.parse().ok()?))?;
        let seconds = (hours * 60 + minutes) * 60;
        let seconds = if text.starts_with('-') { -seconds } else { seconds };
        Offset::from_seconds(seconds).ok().filter(|_| hours < 24 && minutes < 60).map(TimeZone::fixed)
    };
    offset().or_else(|| TimeZone::get(&text).ok()).ok_or_else(|| {
        format!("zone: {text:?}; expected a zone such as Europe/Berlin, or an offset such as +01:00")
    })
}

fn offset_text(zone: &TimeZone) -> String {
    let seconds = zone.to_fixed_offset().map_or(0, Offset::seconds);
    let sign = if seconds < 0 { '-' } else { '+' };
    let minutes = seconds.abs() / 60;
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

/// The begins of the days or months that have a part of a period, and the end of the last. At most one more than is
/// allowed. `None` beyond the years of a time.
fn calendar_times(
    from: OffsetDateTime,
    to: OffsetDateTime,
    length: Length,
    zone: &TimeZone,
) -> Option<Vec<OffsetDateTime>> {
    let date = jiff::Timestamp::from_second(from.unix_timestamp()).ok()?.to_zoned(zone.clone()).date();
    let begin = |bucket: i64| {
        let date = match length {
            Length::Days(days) => ORIGIN_DATE.checked_add(bucket.checked_mul(days)?.days()).ok()?,
            Length::Months(months) => ORIGIN_DATE.checked_add(bucket.checked_mul(months)?.months()).ok()?,
        };
        // Where the clock skips midnight, the day begins later.
        let second = date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?.timestamp().as_second();
        OffsetDateTime::from_unix_timestamp(second).ok()
    };
    let first = match length {
        Length::Days(days) => i64::from((date - ORIGIN_DATE).get_days()).div_euclid(days),
        Length::Months(months) => {
            (i64::from(date.year() - ORIGIN_DATE.year()) * 12 + i64::from(date.month()) - 1)
                .div_euclid(months)
        }
    };
    let mut times = Vec::new();
    for bucket in first..=first + MAX_BUCKETS + 1 {
        let time = begin(bucket)?;
        times.push(time);
        if time >= to {
            break;
        }
    }
    Some(times)
}

/// The buckets of so many seconds that have a part of a period.
fn whole_buckets(from: OffsetDateTime, to: OffsetDateTime, step: i64) -> Result<Buckets, String> {
    let first = (from.unix_timestamp() - ORIGIN).div_euclid(step);
    let last = (to - time::Duration::MICROSECOND).unix_timestamp();
    let end = (last - ORIGIN).div_euclid(step) + 1;
    if end - first > MAX_BUCKETS {
        return Err(too_many(&format!("{step} s"), &(end - first).to_string()));
    }
    let time = |bucket: i64| {
        let seconds = bucket.checked_mul(step).and_then(|seconds| seconds.checked_add(ORIGIN));
        seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
    };
    let times = time(first).zip(time(end));
    times
        .map(|(from, to)| Buckets::Seconds { from, to, step })
        .ok_or_else(|| format!("step: buckets of {step} s reach beyond the years 0000 to 9999"))
}

fn too_many(step: &str, count: &str) -> String {
    format!(
        "step: {step} gives {count} buckets, at most {MAX_BUCKETS}: give a longer step or a shorter period"
    )
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn buckets(step: &str, zone: &str, from: &str, to: &str) -> Result<Buckets, String> {
        let time = |text: &str| {
            let time = garenne_protocol::sensor::Timestamp::parse(text).unwrap();
            OffsetDateTime::from(time)
        };
        Step::parse(step, (!zone.is_empty()).then_some(zone))?.buckets(time(from), time(to))
    }

    fn times(step: &str, zone: &str, from: &str, to: &str) -> (Vec<String>, Source) {
        let buckets = buckets(step, zone, from, to).unwrap();
        let source = buckets.source();
        let Buckets::Calendar { times, .. } = buckets else { panic!("{buckets:?}") };
        let text = |time: OffsetDateTime| garenne_protocol::sensor::Timestamp::from(time).to_string();
        (times.into_iter().map(text).collect(), source)
    }

    #[test]
    fn months_and_years_are_those_of_the_calendar() {
        for (step, zone, from, to, expected, source) in [
            (
                "1month",
                "",
                "2026-01-31T12:00:00Z",
                "2026-04-01T00:00:00Z",
                &[
                    "2026-01-01T00:00:00Z",
                    "2026-02-01T00:00:00Z",
                    "2026-03-01T00:00:00Z",
                    "2026-04-01T00:00:00Z",
                ][..],
                Source::Days,
            ),
            (
                "1 month",
                "Europe/Berlin",
                "2026-03-01T00:00:00Z",
                "2026-04-01T00:00:00Z",
                &["2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"],
                Source::Hours,
            ),
            (
                "3months",
                "UTC",
                "2024-02-29T00:00:00Z",
                "2024-03-01T00:00:00Z",
                &["2024-01-01T00:00:00Z", "2024-04-01T00:00:00Z"],
                Source::Days,
            ),
            (
                "1y",
                "+05:30",
                "2000-06-01T00:00:00Z",
                "2000-06-02T00:00:00Z",
                &["1999-12-31T18:30:00Z", "2000-12-31T18:30:00Z"],
                Source::Readings,
            ),
        ] {
            let (found, found_source) = times(step, zone, from, to);
            let found: Vec<_> = found.iter().map(String::as_str).collect();
            assert_eq!((&found[..], found_source), (expected, source), "{step} {zone}");
        }
    }

    #[test]
    fn days_of_a_zone_have_23_to_25_hours() {
        let hours = |zone: &str, from: &str, to: &str| {
            let Buckets::Calendar { times, .. } = buckets("1d", zone, from, to).unwrap() else { panic!() };
            times.windows(2).map(|day| (day[1] - day[0]).whole_hours()).collect::<Vec<_>>()
        };
        assert_eq!(hours("Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-30T12:00:00Z"), [24, 23, 24]);
        assert_eq!(hours("Europe/Berlin", "2026-10-24T00:00:00Z", "2026-10-26T12:00:00Z"), [24, 25, 24]);
        assert_eq!(hours("UTC", "2026-10-24T00:00:00Z", "2026-10-26T12:00:00Z"), [24, 24, 24]);
        // The clock skips midnight.
        let (days, source) = times("1d", "America/Asuncion", "2024-10-05T12:00:00Z", "2024-10-06T12:00:00Z");
        assert_eq!(days, ["2024-10-05T04:00:00Z", "2024-10-06T04:00:00Z", "2024-10-07T03:00:00Z"]);
        assert_eq!(source, Source::Hours);
        let (weeks, _) = times("1w", "Europe/Berlin", "2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z");
        assert_eq!(weeks, ["2026-11-22T23:00:00Z", "2026-11-29T23:00:00Z", "2026-12-06T23:00:00Z"]);
    }

    #[test]
    fn steps_of_seconds_are_counted_from_a_monday() {
        let one = buckets("7d", "", "2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z").unwrap();
        assert_eq!(one.period(), (datetime!(2026-11-23 0:00 UTC), datetime!(2026-11-30 0:00 UTC)));
        let source =
            |step| buckets(step, "", "2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z").unwrap().source();
        assert_eq!(
            ["90s", "1h", "6h", "25h", "2d"].map(source),
            [Source::Readings, Source::Hours, Source::Hours, Source::Hours, Source::Days]
        );
    }

    #[test]
    fn invalid_steps_and_zones_are_refused() {
        let expected =
            "expected a duration of whole seconds such as 5m, 1h or 1d, or months or years such as 1month";
        let zone = "expected a zone such as Europe/Berlin, or an offset such as +01:00";
        for (step, given, error) in [
            ("0s", "", format!("step: \"0s\"; {expected}")),
            ("1500ms", "", format!("step: \"1500ms\"; {expected}")),
            ("1month 2days", "", format!("step: \"1month 2days\"; {expected}")),
            ("0month", "", format!("step: \"0month\"; {expected}")),
            ("1.5month", "", format!("step: \"1.5month\"; {expected}")),
            ("99999y", "", format!("step: \"99999y\"; {expected}")),
            ("month", "", format!("step: \"month\"; {expected}")),
            ("1h", "UTC", "zone: needs a step of days, weeks, months or years, not \"1h\"".to_owned()),
            ("1d", "Europe/Atlantis", format!("zone: \"Europe/Atlantis\"; {zone}")),
            ("1d", "+25:00", format!("zone: \"+25:00\"; {zone}")),
            ("1d", "+1:00", format!("zone: \"+1:00\"; {zone}")),
        ] {
            assert_eq!(buckets(step, given, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"), Err(error));
        }
        let many = buckets("1d", "UTC", "1990-01-01T00:00:00Z", "2026-01-01T00:00:00Z").unwrap_err();
        assert!(many.starts_with("step: 1d gives more than 10000 buckets, at most 10000"), "{many}");
        let beyond = buckets("9000y", "", "9990-01-01T00:00:00Z", "9991-01-01T00:00:00Z").unwrap_err();
        assert_eq!(beyond, "step: buckets of 9000y reach beyond the years 0000 to 9999");
        let (days, _) = times("1d", " 01:00", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
        assert_eq!(days, ["2025-12-31T23:00:00Z", "2026-01-01T23:00:00Z"]);
    }
}
