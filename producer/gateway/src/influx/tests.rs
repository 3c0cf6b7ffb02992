use proptest::prelude::*;

use super::*;

fn now() -> Timestamp {
    Timestamp::from_micros(7_000_000).unwrap()
}

fn most(records: usize) -> Limits {
    Limits { records, ..Limits::default() }
}

/// The readings of all lines, or the first refusal with the number of its line.
fn records(
    body: &[u8],
    precision: Precision,
    now: Timestamp,
    limits: &Limits,
) -> Result<Vec<Record>, String> {
    let (mut records, mut body) = (Vec::new(), body.to_vec());
    for (number, line) in lines_of(&mut body) {
        let readings = line.and_then(|line| line_readings(line, precision, now, limits));
        let readings = readings.map_err(|error| {
            let error = error.in_record(0);
            format!("line {number}: {}: {}", error.field, error.message)
        })?;
        records.extend(readings.records);
    }
    Ok(records)
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
fn a_bad_field_is_left_out_by_name_and_its_line_keeps_the_others() {
    for (line, kept, field, code) in [
        ("m,host=F a=1,b=99999999999999999999i,c=3 1", vec![1.0, 3.0], "b", "not-finite"),
        ("m,host=F a=1,b=18446744073709551616u,c=3 1", vec![1.0, 3.0], "b", "not-finite"),
        ("m,host=F a=1,b=-9223372036854775809i,c=3 1", vec![1.0, 3.0], "b", "not-finite"),
        (
            "m,host=F a=-9223372036854775808i,b=1e400,c=18446744073709551615u 1",
            vec![-(2_f64.powi(63)), 2_f64.powi(64)],
            "b",
            "not-finite",
        ),
        ("m,host=F a=1,a=2,b=3 1\r", vec![1.0, 3.0], "a", "duplicate"),
    ] {
        let precision = Precision::parse(Some("s")).unwrap();
        let readings = line_readings(line, precision, now(), &most(100)).unwrap();
        let values: Vec<_> = readings.records.iter().map(|record| record.reading.value).collect();
        assert_eq!(values, kept, "{line}");
        let error = readings.left_out.into_iter().next().unwrap().in_record(0);
        assert_eq!((&*error.field, error.code.code()), (field, code), "{line}");
    }
}

/// Each line that is refused by its number, and the values of the others.
fn sorted(body: &str) -> (Vec<u64>, Vec<f64>) {
    let (mut refused, mut values, mut bytes) = (Vec::new(), Vec::new(), body.as_bytes().to_vec());
    let precision = Precision::parse(Some("s")).unwrap();
    for (number, line) in lines_of(&mut bytes) {
        match line.and_then(|line| line_readings(line, precision, now(), &most(100))) {
            Ok(readings) => values.extend(readings.records.iter().map(|record| record.reading.value)),
            Err(_) => refused.push(number),
        }
    }
    (refused, values)
}

#[test]
fn a_line_with_a_quote_or_a_backslash_takes_no_line_behind_it() {
    for (body, refused, values) in [
        ("m a=1,s=\"open 1\nm b=2 1\nm c=3 1", vec![1], vec![2.0, 3.0]),
        ("m a=1 1\nm s=\"open 1\nm b=2,s=\"x y\" 1\nm c=3 1", vec![2], vec![1.0, 2.0, 3.0]),
        ("# x y=\"z\nm b=2 1\nm c=3 1", vec![], vec![2.0, 3.0]),
        ("  # it's a=\"\nm b=2,s=\"x\" 1", vec![], vec![2.0]),
        ("m a=1 1\\\nm b=2 1\nm c=3 1", vec![1], vec![2.0, 3.0]),
        ("m,t=a\\\nm b=2 1", vec![1], vec![2.0]),
        // Texts with line breaks are lines as before, also behind a bad one, and with a number that is not finite.
        ("m s=\"a\nb\",a=1 1\nm bad 1\nm c=3 1", vec![3], vec![1.0, 3.0]),
        ("m s=\"a\n# b\n\",a=1,b=nan 1\nm s=\"open\nm s=\"c\nd\",c=3 1", vec![4], vec![1.0, 3.0]),
        ("m s=\"a\\\"\nb\",a=1 1\n", vec![], vec![1.0]),
    ] {
        assert_eq!(sorted(body), (refused, values), "{body}");
    }
}

/// The quote opens a text if none is open, and opens another one if one is.
#[test]
fn lines_that_each_open_a_text_to_the_end_of_the_body_take_linear_time() {
    const LINES: usize = 50_000;
    let mut body = "m \"a=\"\n".repeat(LINES).into_bytes();
    assert_eq!(lines_of(&mut body).count(), LINES + 1);
}

#[test]
fn lines_may_end_with_a_carriage_return_and_names_have_no_control_characters() {
    assert_eq!(
        shown("m,host=a value=1\r\n\r\nm,host=b value=2 7\r\n", "s"),
        ["a m 1 - 1970-01-01T00:00:07Z", "b m 2 - 1970-01-01T00:00:07Z"]
    );
    for line in ["m,host=q\0q a=1 1", "m\u{1},host=q a=1 1", "m,host=q a\u{7f}=1 1"] {
        let precision = Precision::parse(Some("s")).unwrap();
        let error = line_readings(line, precision, now(), &most(100)).unwrap_err().in_record(0);
        assert_eq!(error.code, Fault::BadName, "{line:?}");
    }
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
    let refused = records(body.as_bytes(), precision, now(), &most(100)).unwrap_err();
    assert!(!refused.contains(char::is_control) && refused.len() < 500, "{refused}");
}

#[test]
fn an_invalid_line_is_named_by_its_index() {
    let error =
        |body: &str| records(body.as_bytes(), Precision(TimeUnit::Seconds), now(), &most(2)).unwrap_err();
    assert!(error("a v=1\nb\n").starts_with("line 2: line: not line protocol:"), "{}", error("b"));
    assert_eq!(
        error("a v=1\na v=1 1763600000000"),
        "line 2: timestamp: 1763600000000 as seconds is outside the years 0000 to 9999"
    );
    assert_eq!(error("a x=1,y=2,z=3"), "line 1: body: more than 2 readings");
    let wrong = error("a v=1\ntemperature,unit=C value=21.5");
    assert!(wrong.starts_with("line 2: unit: \"C\" is the coulomb"), "{wrong}");
}

#[test]
fn a_comma_without_a_field_is_no_part_of_a_name() {
    for (line, at) in [
        ("w,host=h ,u=1", "before the comma at byte 9"),
        ("w,host=h a=1,,b=2 1790000013000000000", "before the comma at byte 13"),
        (" w a,b=1", "before the comma at byte 3"),
        ("w a=1, 1790000013000000000", "after the comma at byte 5"),
        ("w a=\"x,=\",", "after the comma at byte 9"),
    ] {
        let error = records(line.as_bytes(), Precision::parse(None).unwrap(), now(), &most(9)).unwrap_err();
        assert!(error.contains(at), "{line}: {error}");
    }
    let fine = r#"w\,x,h\,o=a\,b a\,b=1,c="d,,e=",f=2"#;
    let names = |body: &str| {
        let records = records(body.as_bytes(), Precision::parse(None).unwrap(), now(), &most(9)).unwrap();
        records.into_iter().map(|it| it.reading.metric.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(fine), ["w,x.a,b,h,o=a,b", "w,x.f,h,o=a,b"]);
    // NULs at the end, also between line ends.
    assert_eq!(names("w a=1\0\r\n\0\n"), ["w.a"]);
}

#[test]
fn an_expensive_line_is_refused() {
    let refused = |body: &str| {
        records(body.as_bytes(), Precision(TimeUnit::Nanoseconds), now(), &most(100)).unwrap_err()
    };
    let tags = |bytes: usize| format!("m,t={} f=1,g=2", "x".repeat(bytes));
    assert_eq!(
        refused(&tags(MAX_SERIES)),
        "line 1: line: measurement and tags have 4100 bytes; 4096 are allowed"
    );
    assert!(records(tags(4000).as_bytes(), Precision(TimeUnit::Nanoseconds), now(), &most(100)).is_ok());
    assert_eq!(
        refused(&format!("m {}=1", "x".repeat(5000))),
        "line 1: line: a field's name has 5000 bytes; 4096 are allowed"
    );
    // Newlines within quotes do not end a line.
    let fields = "a=\"\n\",".repeat(5000);
    assert_eq!(
        refused(&format!("m {fields}b=1")),
        "line 1: line: it has 5001 tags and fields; 4196 are allowed"
    );
    assert_eq!(
        refused(&format!("m f=1\nm f=\"{}\"", "x".repeat(MAX_LINE))),
        format!("line 2: line: it has {} bytes; {MAX_LINE} are allowed", MAX_LINE + 6)
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
        at(68).unwrap_err(),
        "line 2: timestamp: 68 as seconds is 1970-01-01T00:01:08Z, more than 1m ahead of the local clock, \
         1970-01-01T00:00:07Z"
    );
}

#[test]
fn a_time_before_min_time_is_refused_and_names_the_precision_that_was_probably_meant() {
    let limits = Limits::of_times(std::time::Duration::ZERO, Timestamp::DEFAULT_MIN);
    let now = Timestamp::parse("2026-11-28T00:00:00Z").unwrap();
    let refused =
        |line: &str| records(line.as_bytes(), Precision(TimeUnit::Nanoseconds), now, &limits).unwrap_err();
    for (ticks, hint) in [
        ("1711190482", "; did you mean precision=s?"),
        ("1711190482000", "; did you mean precision=ms?"),
        ("1711190482000000", "; did you mean precision=us?"),
        ("0", "; is the sender's clock set?"),
        ("-1", "; is the sender's clock set?"),
    ] {
        let text = refused(&format!("foo v=1 {ticks}"));
        assert!(text.starts_with(&format!("line 1: timestamp: {ticks} as nanoseconds is 19")), "{text}");
        assert!(text.ends_with(hint), "{text}");
    }
}

#[test]
fn a_field_that_is_not_finite_is_left_out_and_a_line_of_bad_bytes_is_refused() {
    let read = |line: &str| {
        let readings = line_readings(line, Precision(TimeUnit::Seconds), now(), &most(10));
        readings.map(|readings| {
            let values: Vec<_> = readings.records.iter().map(|record| record.reading.value).collect();
            let left_out = readings.left_out.into_iter().map(|error| error.in_record(0).message);
            (values, left_out.collect::<Vec<_>>())
        })
    };
    for word in ["1e400", "NaN", "-inf", "Infinity"] {
        let line = format!("m\\ x,host=h a=1,b={word},t=\"x b=NaN, y\",c=3 5");
        assert_eq!(
            read(&line).unwrap(),
            (vec![1.0, 3.0], vec!["not a finite number, or beyond what 64 bits hold".to_owned()]),
            "{line}"
        );
    }
    let repeated = read("m,host=h2,host=h3 a=1").unwrap_err();
    assert_eq!(repeated.in_record(0).to_string(), "record 0: line: the tag \"host\" is given twice");
    assert_eq!(read("m,a=1,b=1 a=1").unwrap().0, [1.0]);
    assert_eq!(read("m a=nan").unwrap_err().code(), Fault::NotFinite);
    let (values, left_out) = read("m,unit=C temperature=1,charge=2").unwrap();
    assert_eq!((values, left_out.len()), (vec![2.0], 1), "a unit contradicts one of two metrics");
    let marked = "\u{feff}m a=1\n\u{feff}# comment\n\u{feff}\n\u{feff}m a=2";
    let mut body = marked.as_bytes().to_vec();
    let lines: Vec<_> = lines_of(&mut body).map(|(_, line)| line.unwrap().to_owned()).collect();
    assert_eq!(lines, ["m a=1", "# comment", "", "m a=2"]);
    let mut body = b"\xef\xbb\xbfm a=1\nm,host=K\xfcche a=2\n\nm t=\"x\ny\"\nm a=3\0\0".to_vec();
    let lines: Vec<_> = lines_of(&mut body).map(|(number, line)| (number, line.is_ok())).collect();
    assert_eq!(lines, [(1, true), (2, false), (3, true), (4, true), (6, true)]);
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
