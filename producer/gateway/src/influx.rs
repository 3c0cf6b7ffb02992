//! Converts InfluxDB's line protocol into readings, so that Telegraf can write to the gateway.

use std::sync::Arc;

use garenne_protocol::sensor::{
    BadField, BadRecord, Fault, Limits, Reading, Record, TimeUnit, Timestamp, Unit, parse::check_unit,
};
use influxdb_line_protocol::{FieldValue, ParsedLine, parse_lines, split_lines};

use crate::{
    refusal::short,
    series_name::{fit, labels},
};

/// Tags that name the device, in order of preference.
const DEVICE_TAGS: [&str; 8] =
    ["device", "device_id", "sensor", "sensor_id", "station", "node", "host", "hostname"];
/// Longest line, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Longest measurement with its tags, and longest field name, in bytes. Each reading of the line copies and hashes
/// them.
const MAX_SERIES: usize = 4096;

/// The unit of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision(TimeUnit);

impl Precision {
    /// Parses the parameter `precision` of both API versions; `None` for an unknown one. The default is nanoseconds.
    pub fn parse(word: Option<&str>) -> Option<Self> {
        Some(Self(match word {
            None | Some("" | "ns" | "n") => TimeUnit::Nanoseconds,
            Some("us" | "u" | "µ") => TimeUnit::Microseconds,
            Some("ms") => TimeUnit::Milliseconds,
            Some("s") => TimeUnit::Seconds,
            Some("m") => TimeUnit::Minutes,
            Some("h") => TimeUnit::Hours,
            Some(_) => return None,
        }))
    }
}

/// Converts every numeric and boolean field into a reading. Text fields are ignored.
///
/// # Errors
/// The first invalid line, a time too far ahead, or more readings than `limits` allow.
pub fn records(
    body: &[u8],
    precision: Precision,
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadRecord> {
    let text = text_of("body", body).map_err(|error| error.in_record(0))?;
    let (mut records, mut index) = (Vec::new(), 0);
    for line in split_lines(text) {
        // Comments and blank lines are skipped and not counted.
        let is_counted = add_line(line, precision, now, limits, &mut records);
        index += usize::from(is_counted.map_err(|error| error.in_record(index))?);
    }
    Ok(records)
}

/// As [`records`], for one line without its line ending.
///
/// # Errors
/// The line is invalid, its time is too far ahead, or it has more readings than `limits` allow.
pub(super) fn line_records(
    line: &[u8],
    precision: Precision,
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadField> {
    let mut records = Vec::new();
    add_line(text_of("line", line)?, precision, now, limits, &mut records)?;
    Ok(records)
}

fn text_of<'t>(field: &'static str, bytes: &'t [u8]) -> Result<&'t str, BadField> {
    str::from_utf8(bytes).map_err(|error| {
        Fault::Malformed.in_field(field, format!("not UTF-8 from byte {} on", error.valid_up_to()))
    })
}

/// Adds the records of a line. False for a comment or a blank line.
fn add_line(
    line: &str,
    precision: Precision,
    now: Timestamp,
    limits: &Limits,
    records: &mut Vec<Record>,
) -> Result<bool, BadField> {
    check_line(line, limits.records)?;
    let Some(line) = parse_lines(line).next() else { return Ok(false) };
    let line = line.map_err(|error| {
        Fault::Malformed.in_field("line", format!("not line protocol: {}", short(&error)))
    })?;
    check_series(&line).map_err(|message| Fault::OutOfRange.in_field("line", message))?;
    let option = |unit: TimeUnit| format!("precision={}", unit.symbol());
    let time = line.timestamp.map(|ticks| limits.unix_time("timestamp", (ticks, precision.0), now, option));
    let time = time.transpose()?.unwrap_or(now);
    add_fields(&line, time, records)?;
    if records.len() > limits.records {
        let message = format!("more than {} readings", limits.records);
        return Err(Fault::TooManyRecords.in_field("body", message));
    }
    Ok(true)
}

/// Refuses a line before it is parsed if its parsed form would be many times larger: a field of a few bytes needs
/// much more memory. Each tag and field has one `=`, and a line may have at most as many fields as a request may have
/// readings.
fn check_line(line: &str, most: usize) -> Result<(), BadField> {
    let pairs = memchr::memchr_iter(b'=', line.as_bytes()).count();
    let allowed = most.saturating_add(MAX_SERIES);
    if line.len() > MAX_LINE {
        let message = format!("it has {} bytes; {MAX_LINE} are allowed", line.len());
        Err(Fault::OutOfRange.in_field("line", message))
    } else if pairs > allowed {
        let message = format!("it has {pairs} tags and fields; {allowed} are allowed");
        Err(Fault::TooManyRecords.in_field("line", message))
    } else {
        Ok(())
    }
}

fn check_series(line: &ParsedLine<'_>) -> Result<(), String> {
    let tags = line.series.tag_set.iter().flatten();
    let tags: usize = tags.map(|(key, value)| key.as_str().len() + value.as_str().len() + 2).sum();
    let series = line.series.measurement.as_str().len() + tags;
    if series > MAX_SERIES {
        return Err(format!("measurement and tags have {series} bytes; {MAX_SERIES} are allowed"));
    }
    let longest = line.field_set.iter().map(|(name, _)| name.as_str().len()).max().unwrap_or(0);
    if longest > MAX_SERIES {
        return Err(format!("a field's name has {longest} bytes; {MAX_SERIES} are allowed"));
    }
    Ok(())
}

/// Adds a record for each field that is a number.
///
/// # Errors
/// The unit contradicts the metric: a worker would refuse the reading.
fn add_fields(line: &ParsedLine<'_>, time: Timestamp, records: &mut Vec<Record>) -> Result<(), BadField> {
    let measurement = line.series.measurement.as_str();
    let tag = |name: &str| line.tag_value(name).map(|value| value.as_str());
    let device_tag = DEVICE_TAGS.into_iter().find(|name| tag(name).is_some_and(|value| !value.is_empty()));
    let device: Arc<str> = fit(device_tag.and_then(tag).unwrap_or(measurement));
    let unit = tag("unit").and_then(Unit::get);
    let tags = line.series.tag_set.iter().flatten();
    let rest = labels(
        tags.map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| Some(*key) != device_tag && !(*key == "unit" && unit.is_some())),
    );
    for (field, value) in &line.field_set {
        let value = match value {
            FieldValue::F64(number) => *number,
            FieldValue::I64(number) => *number as f64,
            FieldValue::U64(number) => *number as f64,
            FieldValue::Boolean(flag) => f64::from(u8::from(*flag)),
            FieldValue::String(_) => continue,
        };
        if !value.is_finite() {
            continue;
        }
        let name = match field.as_str() {
            "value" => format!("{measurement}{rest}"),
            field => format!("{measurement}.{field}{rest}"),
        };
        let metric = fit(&name);
        check_unit("unit", unit, &metric)?;
        let reading = Reading { device: Arc::clone(&device), metric, value, unit, time };
        records.push(Record { reading, id: None, time_assumed: line.timestamp.is_none() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_micros(7_000_000).unwrap()
    }

    fn most(records: usize) -> Limits {
        Limits { records, ..Limits::default() }
    }

    fn shown(body: &str, precision: &str) -> Vec<String> {
        let precision = Precision::parse(Some(precision)).unwrap();
        let records = records(body.as_bytes(), precision, now(), &most(100)).unwrap();
        let unit = |unit: Option<Unit>| unit.map_or("-", Unit::symbol);
        let line = |r: &Reading| format!("{} {} {} {} {}", r.device, r.metric, r.value, unit(r.unit), r.time);
        records.iter().map(|record| line(&record.reading)).collect()
    }

    #[test]
    fn lines_of_telegraf_become_readings() {
        let body = "cpu,cpu=cpu0,host=h1 usage_idle=99.5,usage_user=1i 1763600000000000000\n\
                    # a comment\n\
                    mem,host=h1 used=12u,ok=true,state=\"fine\" 1763600000000000000\n";
        assert_eq!(
            shown(body, "ns"),
            [
                "h1 cpu.usage_idle,cpu=cpu0 99.5 - 2025-11-20T00:53:20Z",
                "h1 cpu.usage_user,cpu=cpu0 1 - 2025-11-20T00:53:20Z",
                "h1 mem.used 12 - 2025-11-20T00:53:20Z",
                "h1 mem.ok 1 - 2025-11-20T00:53:20Z",
            ]
        );
    }

    #[test]
    fn device_tags_units_and_precisions_are_understood() {
        assert_eq!(
            shown("temperature,sensor=roof\\ 1,unit=Cel value=21.5 1763600000", "s"),
            ["roof 1 temperature 21.5 Cel 2025-11-20T00:53:20Z"]
        );
        assert_eq!(
            shown("temperature value=21.5", "ms"),
            ["temperature temperature 21.5 - 1970-01-01T00:00:07Z"]
        );
        assert_eq!(Precision::parse(Some("fortnight")), None);
    }

    #[test]
    fn an_error_message_is_one_bounded_line() {
        let precision = Precision::parse(None).unwrap();
        let body = format!("m f=1 1\u{1}/\n{}", "x\r".repeat(5000));
        let refused = records(body.as_bytes(), precision, now(), &most(100)).unwrap_err().to_string();
        assert!(!refused.contains(char::is_control) && refused.len() < 500, "{refused}");
    }

    #[test]
    fn an_invalid_line_is_named_by_its_index() {
        let error =
            |body: &str| records(body.as_bytes(), Precision(TimeUnit::Seconds), now(), &most(2)).unwrap_err();
        assert!(
            error("a v=1\nb\n").to_string().starts_with("record 1: line: not line protocol:"),
            "{}",
            error("b")
        );
        assert_eq!(
            error("a v=1\na v=1 1763600000000").to_string(),
            "record 1: timestamp: 1763600000000 as seconds is outside the years 0000 to 9999"
        );
        assert_eq!(error("a x=1,y=2,z=3").to_string(), "record 0: body: more than 2 readings");
        let wrong = error("a v=1\ntemperature,unit=C value=21.5").to_string();
        assert!(wrong.starts_with("record 1: unit: \"C\" is the coulomb"), "{wrong}");
    }

    #[test]
    fn an_expensive_line_is_refused() {
        let refused = |body: &str| {
            records(body.as_bytes(), Precision(TimeUnit::Nanoseconds), now(), &most(100))
                .unwrap_err()
                .to_string()
        };
        let tags = |bytes: usize| format!("m,t={} f=1,g=2", "x".repeat(bytes));
        assert_eq!(
            refused(&tags(MAX_SERIES)),
            "record 0: line: measurement and tags have 4100 bytes; 4096 are allowed"
        );
        assert!(records(tags(4000).as_bytes(), Precision(TimeUnit::Nanoseconds), now(), &most(100)).is_ok());
        assert_eq!(
            refused(&format!("m {}=1", "x".repeat(5000))),
            "record 0: line: a field's name has 5000 bytes; 4096 are allowed"
        );
        // Newlines within quotes do not end a line.
        let fields = "a=\"\n\",".repeat(5000);
        assert_eq!(
            refused(&format!("m {fields}b=1")),
            "record 0: line: it has 5001 tags and fields; 4196 are allowed"
        );
        assert_eq!(
            refused(&format!("m f=1\nm f=\"{}\"", "x".repeat(MAX_LINE))),
            format!("record 1: line: it has {} bytes; {MAX_LINE} are allowed", MAX_LINE + 6)
        );
    }

    #[test]
    fn a_time_too_far_ahead_is_refused() {
        let limits = Limits { max_ahead: Some(std::time::Duration::from_secs(60)), ..most(10) };
        let at = |second: u32| {
            records(format!("m f=1\nm f=1 {second}").as_bytes(), Precision(TimeUnit::Seconds), now(), &limits)
        };
        assert_eq!(at(67).unwrap().len(), 2);
        assert_eq!(
            at(68).unwrap_err().to_string(),
            "record 1: timestamp: 68 as seconds is 1970-01-01T00:01:08Z, more than 1m ahead of the local clock, \
             1970-01-01T00:00:07Z"
        );
    }

    #[test]
    fn a_time_before_min_time_is_refused_and_names_the_precision_that_was_probably_meant() {
        let limits = Limits::of_times(std::time::Duration::ZERO, Timestamp::DEFAULT_MIN);
        let now = Timestamp::parse("2026-11-28T00:00:00Z").unwrap();
        let refused = |line: &str| {
            records(line.as_bytes(), Precision(TimeUnit::Nanoseconds), now, &limits).unwrap_err().to_string()
        };
        for (ticks, hint) in [
            ("1711190482", "; did you mean precision=s?"),
            ("1711190482000", "; did you mean precision=ms?"),
            ("1711190482000000", "; did you mean precision=us?"),
            ("0", "; is the sender's clock set?"),
            ("-1", "; is the sender's clock set?"),
        ] {
            let text = refused(&format!("foo v=1 {ticks}"));
            assert!(
                text.starts_with(&format!("record 0: timestamp: {ticks} as nanoseconds is 19")),
                "{text}"
            );
            assert!(text.ends_with(hint), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_parsed_reading_is_valid(body in "[a-z,= \\\\\"0-9.\n#iut-]{0,120}") {
            if let Ok(records) = records(body.as_bytes(), Precision(TimeUnit::Nanoseconds), now(), &most(1000)) {
                for record in records {
                    let json = serde_json::to_vec(&record.reading).unwrap();
                    let again = garenne_protocol::sensor::readings_from("application/json", &json, now());
                    prop_assert!(again.is_ok(), "{:?} {:?}", record, again);
                }
            }
        }
    }
}
