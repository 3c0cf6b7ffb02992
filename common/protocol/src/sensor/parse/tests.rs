use serde::de::DeserializeSeed;
use serde_json::{Value as Json, json};

use super::object::{Object, RecordReader};
use super::scalar::AnyValue;
use super::*;

mod any_input;
mod counters;
mod partial;

const NOW: i64 = 1_763_600_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_micros(NOW).unwrap()
}

fn parse(content_type: &str, body: &str) -> Result<Vec<Record>, BadRecord> {
    let strict = readings_from(content_type, body.as_bytes(), now());
    // Sifting gives the same records, unless one is refused.
    if let Ok(form) = Form::of(content_type) {
        let sifted = sift_readings(form, &mut body.as_bytes().to_vec(), now(), &Limits::default());
        match (&strict, sifted) {
            (Ok(records), Ok(sifted)) => {
                assert!(sifted.refused.is_empty(), "{body}");
                assert!(sifted.slots.iter().flatten().eq(records), "{body}");
            }
            (Ok(_), Err(error)) => panic!("{body}: {error}"),
            (Err(_), Ok(sifted)) => assert!(!sifted.refused.is_empty(), "{body}"),
            (Err(_), Err(_)) => {}
        }
    }
    strict
}

fn readings_within(
    content_type: &str,
    body: &[u8],
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, BadRecord> {
    readings_in(Form::of(content_type)?, body, now, limits)
}

fn brief(record: &Record) -> String {
    let Reading { device, metric, value, unit, time, .. } = &record.reading;
    let unit = unit.map_or("-", Unit::symbol);
    format!("{device} {metric} {value} {unit} {:+}", (time.as_micros() - NOW) as f64 / 1e6)
}

fn briefs(content_type: &str, body: &str) -> Vec<String> {
    parse(content_type, body).unwrap().iter().map(brief).collect()
}

fn error(content_type: &str, body: &str) -> String {
    parse(content_type, body).unwrap_err().to_string()
}

/// Resolves the records of a SenML pack as the parser does, and writes them in the RFC's resolved form: JSON in the
/// order of their times.
pub(in crate::sensor) fn resolved(pack: &[Json], now: Timestamp) -> Result<Json, BadField> {
    let mut base = Base::default();
    let mut records = Vec::new();
    for record in pack {
        let text = record.to_string();
        let mut object = Object::default();
        let reader = RecordReader { senml_only: true, object: &mut object };
        AnyValue(reader).deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
        if let Some(problem) = object.problem {
            return Err(*problem);
        }
        if let Some(record) = base.resolve(object.senml, now)? {
            records.push((record.time, resolved_form(&record)));
        }
    }
    records.sort_by_key(|(time, _)| *time);
    Ok(records.into_iter().map(|(_, json)| json).collect())
}

fn resolved_form(record: &Resolved<'_>) -> Json {
    let mut json = json!({"n": record.name, "t": record.time.as_unix_seconds()});
    let value = record.value.as_ref().map(|value| match value {
        Value::Number(number) => ("v", json!(number)),
        Value::Bool(flag) => ("vb", json!(flag)),
        Value::Text(text) => ("vs", json!(text)),
        Value::Data(data) => ("vd", json!(data)),
    });
    let unit = record.unit.as_ref().map(|unit| ("u", json!(unit)));
    let sum = record.sum.as_ref().map(|sum| ("s", json!(sum.as_ref().unwrap())));
    let update_time = record.update_time.map(|seconds| ("ut", json!(seconds)));
    for (label, field) in [value, unit, sum, update_time].into_iter().flatten() {
        json[label] = field;
    }
    json
}

const PLAIN: &str = r#"{"device":"a","metric":"temperature","value":21.5,"unit":"Cel","time":1763600010}"#;

#[test]
fn a_unit_that_contradicts_the_metric_is_refused_with_the_one_that_is_meant() {
    let plain = r#"{"device":"d1","metric":"temperature","value":21.5,"unit":"C"}"#;
    let refused = parse("application/json", plain).unwrap_err();
    assert_eq!((refused.code, refused.field.as_ref()), (Fault::WrongUnit, "unit"));
    assert_eq!(
        refused.message,
        r#""C" is the coulomb, which does not fit the metric "temperature"; did you mean "Cel" (degrees Celsius)?"#
    );
    let pack = r#"[{"bn":"d1:","bu":"F"},{"n":"temperature","v":70}]"#;
    assert_eq!(parse("application/senml+json", pack).unwrap_err().field, "bu");
    let charge = r#"[{"n":"d1","u":"C","v":21.5},{"n":"d1:temperature","u":"Cel","v":21.5}]"#;
    assert_eq!(
        briefs("application/senml+json", charge),
        ["d1 charge 21.5 C +0", "d1 temperature 21.5 Cel +0"]
    );
}

#[test]
fn every_form_gives_the_same_reading() {
    let one = "a temperature 21.5 Cel +10";
    assert_eq!(briefs("", PLAIN), [one]);
    assert_eq!(briefs("Application/JSON; charset=UTF-8", PLAIN), [one]);
    assert_eq!(briefs("application/json", &format!("[{PLAIN},{PLAIN}]")), [one, one]);
    assert_eq!(briefs("application/x-ndjson", &format!("{PLAIN}\r\n\n{PLAIN}\n")), [one, one]);
    let senml = r#"[{"bn":"a:","bt":1763600010,"n":"temperature","u":"Cel","v":21.5}]"#;
    assert_eq!(briefs("application/senml+json", senml), [one]);
    assert_eq!(briefs("application/json", senml), [one]);
    assert_eq!(briefs("", &senml[1..senml.len() - 1]), [one]);
    assert_eq!(briefs("application/jsonl", &format!("{senml}\n{PLAIN}")), [one, one]);
    assert_eq!(briefs("", &format!("\u{feff}{PLAIN}")), [one]);
}

#[test]
fn optional_fields_of_a_plain_reading() {
    let records = parse("", r#"{"device":"a","metric":"b","value":-0.5e2,"unit":null,"time":null}"#).unwrap();
    assert_eq!(brief(&records[0]), "a b -50 - +0");
    assert!(records[0].time_assumed);
    let records =
        parse("", r#"{"id":"r-1","device":"CO(GT) ü","metric":"b","value":1,"time":"2025-11-20T00:53:21Z"}"#)
            .unwrap();
    assert_eq!(brief(&records[0]), "CO(GT) ü b 1 - +1");
    assert_eq!(records[0].id.as_deref(), Some("r-1"));
    assert!(!records[0].time_assumed);
}

#[test]
fn senml_becomes_readings() {
    let pack = r#"[
        {"bn":"urn:dev:ow:10e2073a01080063","bt":1763600000,"bu":"%RH","v":20},
        {"u":"lon","v":24.30621},
        {"n":":open","vb":true,"t":60},
        {"n":"/raw","u":"count","v":7,"s":3},
        {"bn":"2001:db8::3","bu":"/","v":0.5},
        {"bn":"x","bt":-5,"v":1,"u":"degF"}
    ]"#;
    assert_eq!(
        briefs("application/senml+json", pack),
        [
            "urn:dev:ow:10e2073a01080063 humidity 20 %RH +0",
            "urn:dev:ow:10e2073a01080063 longitude 24.30621 lon +0",
            "urn:dev:ow:10e2073a01080063 open 1 %RH +60",
            "urn:dev:ow:10e2073a01080063 raw 7 count +0",
            "2001:db8::3 ratio 0.5 / +0",
            "x temperature 1 degF -5",
            "urn:dev:ow:10e2073a01080063 raw_sum 3 - +0",
        ]
    );
    let assumed: Vec<_> = parse("", pack).unwrap().iter().map(|record| record.time_assumed).collect();
    assert_eq!(assumed, [false, false, false, false, false, true, false]);
    assert_eq!(briefs("", r#"[{"n":"door:open","vb":false}]"#), ["door open 0 / +0"]);
}

#[test]
fn base_fields_do_not_apply_to_the_next_line() {
    let body = "[{\"bn\":\"a:\",\"bu\":\"Cel\",\"n\":\"t\",\"v\":1}]\n{\"n\":\"b:t\",\"v\":2}";
    assert_eq!(briefs("application/x-ndjson", body), ["a t 1 Cel +0", "b t 2 - +0"]);
}

#[test]
fn equal_names_within_a_body_share_memory() {
    let records = parse("", &format!("[{PLAIN},{PLAIN}]")).unwrap();
    assert!(std::sync::Arc::ptr_eq(&records[0].reading.device, &records[1].reading.device));
}

#[test]
fn error_texts() {
    let long = "x".repeat(129);
    let cut = "x".repeat(60);
    for (body, message) in [
        ("", "record 0: body: not JSON: EOF while parsing a value at line 1 column 0".to_owned()),
        ("{", "record 0: body: not JSON: EOF while parsing an object at line 1 column 1".into()),
        ("[]", "record 0: body: no record with a value".into()),
        (r#"[{"bn":"a"}]"#, "record 0: body: no record with a value".into()),
        ("{}", "record 0: body: neither a plain reading (device, metric, value) nor SenML (n, v)".into()),
        ("[1]", "record 0: body: a number is not a record; expected an object".into()),
        ("\"hi\"", r#"record 0: body: the string "hi" is not a valid body; expected an object or an array of objects"#.into()),
        (r#"{"device":"a","value":1}"#, "record 0: metric: required field is missing".into()),
        (r#"{"device":"a","metric":"b","value":null}"#, "record 0: value: required field is missing".into()),
        (r#"{"device":"a","metric":"b","value":"21,5"}"#, r#"record 0: value: the string "21,5" is not a number"#.into()),
        (r#"{"device":"a","metric":"b","value":1e999}"#, "record 0: body: not JSON: number out of range at line 1 column 40".into()),
        (r#"{"device":"a","metric":"b","value":NaN}"#, "record 0: body: not JSON: expected value at line 1 column 36".into()),
        (r#"{"device":7,"metric":"b","value":1}"#, "record 0: device: the number 7 is not a string".into()),
        (r#"{"device":"","metric":"b","value":1}"#, r#"record 0: device: "": must not be empty"#.into()),
        (r#"{"device":"a\u0000b","metric":"b","value":1}"#, r#"record 0: device: "a\0b": contains a control character"#.into()),
        (r#"{"device":" a","metric":"b","value":1}"#, r#"record 0: device: " a": starts or ends with white space"#.into()),
        (&format!(r#"{{"device":"{long}","metric":"b","value":1}}"#), format!("record 0: device: \"{cut}\"… is 129 bytes long; 128 are allowed")),
        (&format!(r#"[{{"n":"{long}","v":1}}]"#), format!("record 0: n: \"{cut}\"… is 129 bytes long; 128 are allowed")),
        (r#"{"device":"a","metric":"b","value":1,"unit":"celsius"}"#, r#"record 0: unit: "celsius" is not a SenML unit; the nearest is "Cel" (degrees Celsius)"#.into()),
        (r#"[{"n":"a","v":1,"bu":"Celcius"}]"#, r#"record 0: bu: "Celcius" is not a SenML unit; the nearest is "Cel" (degrees Celsius)"#.into()),
        (r#"{"device":"a","metric":"b","value":1,"time":"yesterday"}"#, r#"record 0: time: "yesterday": not an RFC 3339 date and time such as 2026-11-20T07:30:00Z"#.into()),
        (r#"{"device":"a","metric":"b","value":1,"time":1763600000000}"#, "record 0: time: 1763600000000: outside the years 0000 to 9999; a number is Unix seconds, not milliseconds".into()),
        (r#"{"device":"a","metric":"b","value":1,"time":5.684831257391626e307}"#, "record 0: time: 5.684831257391626e307: outside the years 0000 to 9999; a number is Unix seconds, not milliseconds".into()),
        (r#"{"device":1e300,"metric":"b","value":1}"#, "record 0: device: the number 1e300 is not a string".into()),
        (r#"{"device":"a","metric":"b","value":1,"time":true}"#, "record 0: time: true is not an RFC 3339 date and time, or Unix seconds".into()),
        (r#"{"device":"a","metric":"b","value":1,"timee":5}"#, "record 0: timee: unknown field; a plain reading has only device, metric, value, unit, counter, time, id; did you mean time?".into()),
        (r#"{"device":"a","metric":"b","value":1,"n":"x"}"#, "record 0: body: mixes fields of a plain reading and of SenML".into()),
        (r#"{"device":"a","device":"b","metric":"b","value":1}"#, "record 0: device: given twice".into()),
        (r#"[{"n":"a:b","v":1},{"n":"a:c","vs":"Machine Room"}]"#, r#"record 1: vs: the string "Machine Room" is not a numeric value; send v or vb"#.into()),
        (r#"[{"n":"a:b","vd":"aGkgCg"}]"#, "record 0: vd: data is not a numeric value; send v or vb".into()),
    ] {
        assert_eq!(error("application/json", body), message, "{body}");
    }
}

#[test]
fn errors_about_huge_fields_are_short() {
    let long = "x".repeat(4 << 20);
    let cases = [
        format!(r#"{{"device":"a","metric":"b","value":1,"{long}":1}}"#),
        format!(r#"{{"device":"a","metric":"b","value":1,"{long}_":1}}"#),
        format!(r#"{{"device":"{long}","metric":"b","value":1}}"#),
        format!(r#"{{"device":"a","metric":"b","value":1,"time":"{long}"}}"#),
        format!(r#"{{"device":"a","metric":"b","value":1,"unit":"{long}"}}"#),
        format!(r#"{{"device":"a","metric":"b","value":"\u0041{long}"}}"#),
        format!(r#"[{{"bn":"{long}","v":1}}]"#),
        format!(r#""{long}""#),
    ];
    for body in cases {
        let refused = parse("", &body).unwrap_err();
        let text = refused.to_string();
        assert!(text.chars().count() < 300 && !text.contains(&long[..65]), "{text}");
        assert!(refused.field.chars().count() <= 64, "{text}");
    }
    let unknown = format!(r#"{{"device":"a","metric":"b","value":1,"{}":1}}"#, "time".repeat(16));
    assert!(!error("", &unknown).contains("did you mean"));
}

#[test]
fn the_full_name_is_limited_to_1024_bytes() {
    // Trailing separators are ignored, so device and metric are short.
    let pack = format!(r#"[{{"bn":"a{}","v":1}},{{"v":2}}]"#, "/".repeat(1024));
    assert_eq!(
        error("application/senml+json", &pack),
        "record 0: bn: base name and name have 1025 bytes; 1024 are allowed"
    );
    let pack = pack.replacen('/', "", 1);
    assert_eq!(briefs("application/senml+json", &pack), ["a value 1 - +0", "a value 2 - +0"]);
}

#[test]
fn a_time_too_far_ahead_is_refused_with_its_field() {
    let allowed = std::time::Duration::from_secs(600);
    let limits = Limits { max_ahead: Some(allowed), ..Limits::default() };
    let refused = |body: &str| {
        readings_within("", body.as_bytes(), now(), &limits).map_err(|error| {
            assert_eq!(error.code, Fault::ClockSkew);
            error.to_string()
        })
    };
    let at = |micros: i64| Timestamp::from_micros(now().as_micros() + 600_000_000 + micros).unwrap();
    let plain =
        |time: Timestamp| format!(r#"[{PLAIN},{{"device":"a","metric":"b","value":1,"time":"{time}"}}]"#);
    assert_eq!(refused(&plain(at(0))).unwrap().len(), 2);
    let expected = |index: usize, field: &str, time: Timestamp| {
        format!("record {index}: {field}: {time} is more than 10m ahead of the local clock, {}", now())
    };
    assert_eq!(refused(&plain(at(1))), Err(expected(1, "time", at(1))));
    assert_eq!(
        refused(r#"{"device":"a","metric":"b","value":1,"time":"2099-01-01T00:00:00Z"}"#),
        Err(expected(0, "time", Timestamp::parse("2099-01-01T00:00:00Z").unwrap()))
    );
    // SenML: absolute, and relative to now.
    assert_eq!(
        refused(r#"[{"bn":"a","bt":4e9,"v":1}]"#),
        Err(expected(0, "bt", Timestamp::from_unix_seconds(4e9).unwrap()))
    );
    assert_eq!(refused(r#"[{"bn":"a","v":1},{"t":601,"v":1}]"#), Err(expected(1, "t", at(1_000_000))));
    // Without the limits every time is allowed.
    assert!(refused(r#"{"device":"a","metric":"b","value":1,"time":"0001-01-01T00:00:00Z"}"#).is_ok());
    assert!(readings_within("", plain(at(1)).as_bytes(), now(), &Limits::default()).is_ok());
}

#[test]
fn a_time_before_min_time_is_refused_with_its_field_and_a_guess() {
    let limits = Limits::of_times(std::time::Duration::ZERO, Timestamp::DEFAULT_MIN);
    let refused = |body: &str| {
        readings_within("", body.as_bytes(), now(), &limits).map_err(|error| {
            assert_eq!(error.code.code(), "before-min-time");
            error.to_string()
        })
    };
    let plain = |time: &str| format!(r#"[{PLAIN},{{"device":"a","metric":"b","value":1,"time":{time}}}]"#);
    for (time, expected) in [
        ("631151999.5", "1989-12-31T23:59:59.5Z is before min_time (1990-01-01T00:00:00Z)"),
        ("0", "1970-01-01T00:00:00Z is before min_time (1990-01-01T00:00:00Z); is the sender's clock set?"),
        ("-1", "1969-12-31T23:59:59Z is before min_time (1990-01-01T00:00:00Z); is the sender's clock set?"),
        (r#""0001-01-01T00:00:00Z""#, "0001-01-01T00:00:00Z is before min_time (1990-01-01T00:00:00Z)"),
    ] {
        assert_eq!(refused(&plain(time)), Err(format!("record 1: time: {expected}")));
    }
    assert_eq!(refused(&plain("631152000")).unwrap().len(), 2);
    let senml = r#"[{"bn":"a","bt":631151999,"v":1}]"#;
    assert!(refused(senml).unwrap_err().starts_with("record 0: bt: 1989-12-31T23:59:59Z is before"));
}

#[test]
fn a_unix_time_out_of_bounds_names_the_unit_that_was_probably_meant() {
    let limits = Limits::of_times(std::time::Duration::from_secs(600), Timestamp::DEFAULT_MIN);
    let option = |unit: TimeUnit| format!("precision={}", unit.symbol());
    let read = |ticks: i64, unit: TimeUnit| {
        let time = limits.unix_time("timestamp", (ticks, unit), now(), option);
        time.map_err(|error| error.in_record(0).message)
    };
    for (ticks, unit, expected) in [
        (
            1_711_190_482,
            TimeUnit::Nanoseconds,
            "1711190482 as nanoseconds is 1970-01-01T00:00:01.71119Z, before min_time (1990-01-01T00:00:00Z); \
             did you mean precision=s?",
        ),
        (
            1_711_190_482_000,
            TimeUnit::Nanoseconds,
            "1711190482000 as nanoseconds is 1970-01-01T00:28:31.190482Z, before min_time (1990-01-01T00:00:00Z); \
             did you mean precision=ms?",
        ),
        (
            1_711_190_482_000_000,
            TimeUnit::Milliseconds,
            "1711190482000000 as milliseconds is outside the years 0000 to 9999; did you mean precision=us?",
        ),
        (
            -1,
            TimeUnit::Seconds,
            "-1 as seconds is 1969-12-31T23:59:59Z, before min_time (1990-01-01T00:00:00Z); is the sender's clock set?",
        ),
        (
            2_000_000_000,
            TimeUnit::Seconds,
            "2000000000 as seconds is 2033-05-18T03:33:20Z, more than 10m ahead of the local clock, \
             2025-11-20T00:53:20Z",
        ),
    ] {
        assert_eq!(read(ticks, unit), Err(expected.to_owned()));
    }
    assert_eq!(
        read(1_711_190_482, TimeUnit::Seconds).unwrap(),
        Timestamp::parse("2024-03-23T10:41:22Z").unwrap()
    );
}

#[test]
fn unsupported_content_types_and_bodies_that_are_not_json() {
    for given in ["text/plain", "application/cbor", "application/json; charset=latin-1"] {
        let refused = parse(given, PLAIN).unwrap_err();
        assert_eq!(refused.code, Fault::UnsupportedMediaType);
        assert_eq!(
            refused.to_string(),
            format!(
                "record 0: content-type: {given:?} is not supported; expected application/json, application/senml+json or application/x-ndjson in UTF-8"
            )
        );
    }
    assert_eq!(
        error("", "\u{feff}"),
        "record 0: body: not JSON: EOF while parsing a value at line 1 column 0"
    );
    let not_utf8 = readings_from("", b"{\"device\":\"\xff\"}", now()).unwrap_err();
    assert_eq!(not_utf8.to_string(), "record 0: body: not UTF-8 from byte 11 on");
    assert_eq!(not_utf8.code, Fault::Malformed);
}

#[test]
fn a_syntax_error_has_the_line_number() {
    let body = format!("{PLAIN}\n\n{PLAIN}\n{{oops\n");
    assert_eq!(
        error("application/x-ndjson", &body),
        "record 2: body: line 4: not JSON: key must be a string at line 1 column 2"
    );
}

#[test]
fn more_records_than_the_limit_are_refused() {
    let limits = Limits { records: 3, ..Limits::default() };
    let body = |count: usize| format!("[{}]", vec![PLAIN; count].join(","));
    assert_eq!(readings_within("", body(3).as_bytes(), now(), &limits).unwrap().len(), 3);
    let refused = readings_within("", body(4).as_bytes(), now(), &limits).unwrap_err();
    assert_eq!(refused.to_string(), "record 3: body: more than 3 records");
    assert_eq!(refused.code, Fault::TooManyRecords);
    let lines = [PLAIN; 4].join("\n");
    assert!(readings_within("application/jsonl", lines.as_bytes(), now(), &limits).is_err());
}
