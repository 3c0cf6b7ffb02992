//! InfluxDB's line protocol as readings, so that Telegraf writes here unchanged.

use std::sync::Arc;

use garenne_common::sensor::{BadRecord, Reading, Record, Timestamp, Unit, parse::Fault};
use influxdb_line_protocol::{FieldValue, ParsedLine, parse_lines};
use sha2::{Digest, Sha256};

/// The tags that name the device, the likeliest first.
const DEVICES: [&str; 8] =
    ["device", "device_id", "sensor", "sensor_id", "station", "node", "host", "hostname"];
/// The longest device or metric, in bytes.
const LONGEST_NAME: usize = 128;

/// The most that is said of a bad line, in characters.
const LONGEST_COMPLAINT: usize = 200;

/// What a timestamp counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Nanoseconds of one tick.
    nanos: i64,
}

impl Precision {
    /// By the words of both versions of the API; nanoseconds when not said.
    pub fn parse(word: Option<&str>) -> Option<Self> {
        let nanos = match word {
            None | Some("" | "ns" | "n") => 1,
            Some("us" | "u" | "µ") => 1_000,
            Some("ms") => 1_000_000,
            Some("s") => 1_000_000_000,
            Some("m") => 60_000_000_000,
            Some("h") => 3_600_000_000_000,
            Some(_) => return None,
        };
        Some(Self { nanos })
    }
}

/// Reads every numeric field as a reading; text fields are none and are passed over.
///
/// # Errors
/// The first line that is not the protocol, or more than `most` readings.
pub fn records(
    body: &[u8],
    precision: Precision,
    now: Timestamp,
    most: usize,
) -> Result<Vec<Record>, BadRecord> {
    let bad = |index: usize, field: &'static str, code: Fault, message: String| {
        BadRecord::new(index, field, code, message)
    };
    let text = std::str::from_utf8(body).map_err(|error| {
        bad(0, "body", Fault::Malformed, format!("not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    let mut records = Vec::new();
    for (index, line) in parse_lines(text).enumerate() {
        let line =
            line.map_err(|error| bad(index, "line", Fault::Malformed, one_line(&error.to_string())))?;
        let time = match line.timestamp {
            None => now,
            Some(ticks) => ticks
                .checked_mul(precision.nanos)
                .and_then(|nanos| Timestamp::from_micros(nanos.div_euclid(1_000)).ok())
                .ok_or_else(|| {
                    bad(
                        index,
                        "timestamp",
                        Fault::BadTime,
                        format!("{ticks} is outside the calendar; is the precision right?"),
                    )
                })?,
        };
        line_records(&line, time, &mut records);
        if records.len() > most {
            return Err(bad(index, "body", Fault::TooManyRecords, format!("more than {most} readings")));
        }
    }
    Ok(records)
}

/// The parser's complaint without what it quotes of the input beyond some words: no line break, no length of
/// the sender's choice.
fn one_line(complaint: &str) -> String {
    let words = complaint.chars().map(|c| if c.is_control() { ' ' } else { c });
    format!("not line protocol: {}", words.take(LONGEST_COMPLAINT).collect::<String>())
}

fn line_records(line: &ParsedLine<'_>, time: Timestamp, records: &mut Vec<Record>) {
    let measurement = line.series.measurement.as_str();
    let tag = |name: &str| line.tag_value(name).map(|value| value.as_str());
    let device_tag = DEVICES.into_iter().find(|name| tag(name).is_some_and(|value| !value.is_empty()));
    let device: Arc<str> = fit(device_tag.and_then(tag).unwrap_or(measurement));
    let unit = tag("unit").and_then(Unit::get);
    // What else tells series apart must tell metrics apart: cpu0 and cpu1 of one host are two.
    let mut rest: Vec<String> = line
        .series
        .tag_set
        .iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .filter(|(key, _)| Some(*key) != device_tag && !(*key == "unit" && unit.is_some()))
        .map(|(key, value)| format!(",{key}={value}"))
        .collect();
    rest.sort_unstable();
    let rest = rest.concat();
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
        let reading = Reading { device: Arc::clone(&device), metric: fit(&name), value, unit, time };
        records.push(Record { reading, id: None, time_assumed: line.timestamp.is_none() });
    }
}

/// A name that a reading may have. What is too long ends in a hash of all of it, so that two long
/// names stay two.
fn fit(name: &str) -> Arc<str> {
    let clean: String = name.trim().chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if clean.is_empty() {
        return "_".into();
    }
    if clean.len() <= LONGEST_NAME {
        return clean.into();
    }
    let hash: String =
        Sha256::digest(clean.as_bytes())[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let end = (0..=LONGEST_NAME - 9).rev().find(|&end| clean.is_char_boundary(end)).unwrap_or(0);
    format!("{}#{hash}", clean[..end].trim_end()).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_micros(7_000_000).unwrap()
    }

    fn shown(body: &str, precision: &str) -> Vec<String> {
        let precision = Precision::parse(Some(precision)).unwrap();
        let records = records(body.as_bytes(), precision, now(), 100).unwrap();
        let unit = |unit: Option<Unit>| unit.map_or("-", Unit::symbol);
        let line = |r: &Reading| format!("{} {} {} {} {}", r.device, r.metric, r.value, unit(r.unit), r.time);
        records.iter().map(|record| line(&record.reading)).collect()
    }

    #[test]
    fn what_telegraf_writes() {
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
    fn devices_units_and_precisions() {
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
    fn a_complaint_is_one_line_whatever_it_quotes() {
        let precision = Precision::parse(None).unwrap();
        let body = format!("m f=1 1\u{1}/\n{}", "x\r".repeat(5000));
        let refused = records(body.as_bytes(), precision, now(), 100).unwrap_err().to_string();
        assert!(!refused.contains(char::is_control) && refused.len() < 500, "{refused}");
    }

    #[test]
    fn a_bad_line_is_named() {
        let error =
            |body: &str| records(body.as_bytes(), Precision { nanos: 1_000_000_000 }, now(), 2).unwrap_err();
        assert!(
            error("a v=1\nb\n").to_string().starts_with("record 1: line: not line protocol:"),
            "{}",
            error("b")
        );
        assert!(error("a v=1 99999999999999").to_string().contains("is the precision right?"));
        assert_eq!(error("a x=1,y=2,z=3").to_string(), "record 0: body: more than 2 readings");
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let long = |end: &str| fit(&format!("{}{end}", "ü".repeat(100)));
        assert!(long("a").len() <= LONGEST_NAME);
        assert_ne!(long("a"), long("b"));
    }

    proptest! {
        #[test]
        fn nothing_a_sender_writes_makes_a_bad_reading(body in "[a-z,= \\\\\"0-9.\n#iut-]{0,120}") {
            if let Ok(records) = records(body.as_bytes(), Precision { nanos: 1 }, now(), 1000) {
                for record in records {
                    let json = serde_json::to_vec(&record.reading).unwrap();
                    let again = garenne_common::sensor::readings_from("application/json", &json, now());
                    prop_assert!(again.is_ok(), "{:?} {:?}", record, again);
                }
            }
        }
    }
}
