//! Readings of counters: plain ones, and the sums of SenML.

use super::*;

#[test]
fn a_plain_reading_says_that_it_is_of_a_counter() {
    for (field, expected) in [
        ("true", Some(SentCounter::default())),
        ("{}", Some(SentCounter::default())),
        ("false", None),
        ("null", None),
        (
            r#"{"wraps_at":65536,"max_per_hour":0.5,"start":1763600000}"#,
            Some(SentCounter { wraps_at: Some(65_536.0), max_per_hour: Some(0.5), start: Some(now()) }),
        ),
    ] {
        let body = format!(r#"{{"device":"a","metric":"energy","value":1,"counter":{field}}}"#);
        let read = parse("application/json", &body).unwrap();
        assert_eq!(read[0].reading.counter.as_deref().copied(), expected, "{field}");
        let again = serde_json::to_string(&read[0].reading).unwrap();
        assert_eq!(parse("application/json", &again).unwrap()[0].reading, read[0].reading);
    }
}

#[test]
fn a_senml_sum_is_a_counter_of_values_times_seconds() {
    for (record, expected) in [
        (r#"{"n":"a:power","u":"W","v":2,"s":7200}"#, &["a power 2 W +0", "a power_sum 7200 J +0"][..]),
        (r#"{"n":"a:power","u":"kW","s":3.6}"#, &["a power_sum 3600 J +0"]),
        (r#"{"n":"a:flow","u":"l/s","s":500}"#, &["a flow_sum 0.5 m3 +0"]),
        (r#"{"n":"a:current","u":"mA","s":500}"#, &["a current_sum 0.5 C +0"]),
        // The registry has no unit for it.
        (
            r#"{"n":"a:temperature","u":"Cel","v":20,"s":5}"#,
            &["a temperature 20 Cel +0", "a temperature_sum 5 - +0"],
        ),
        (r#"{"n":"a:m","bs":100,"v":1,"s":5}"#, &["a m 1 - +0", "a m_sum 105 - +0"]),
        (r#"{"n":"a:m","bs":100,"v":1}"#, &["a m 1 - +0", "a m_sum 100 - +0"]),
        (r#"{"n":"a","u":"W","s":5}"#, &["a power_sum 5 J +0"]),
    ] {
        let body = format!("[{record}]");
        let records = parse("application/senml+json", &body).unwrap();
        assert_eq!(records.iter().map(brief).collect::<Vec<_>>(), expected, "{record}");
        let is_counter = |record: &Record| record.reading.counter.is_some();
        assert!(
            records.iter().all(|one| is_counter(one) == one.reading.metric.ends_with("_sum")),
            "{record}"
        );
    }
    // A sum that cannot be a reading does not take the value with it, and sums count as records.
    let long = format!(r#"[{{"n":"a:{}","v":1,"s":2}}]"#, "m".repeat(126));
    let sift = |body: &str, records| {
        let limits = Limits { records, ..Limits::default() };
        sift_readings(Form::Senml, &mut body.as_bytes().to_vec(), now(), &limits)
    };
    let sifted = sift(&long, 10).unwrap();
    assert_eq!((sifted.slots.iter().flatten().count(), sifted.notes.len()), (1, 1));
    let pack = r#"[{"n":"a:m","v":1,"s":2},{"n":"a:k","v":1}]"#;
    assert_eq!(sift(pack, 2).unwrap_err().code, Fault::TooManyRecords);
    assert_eq!(sift(pack, 3).unwrap().slots.len(), 3);
}

#[test]
fn a_counter_that_is_invalid_is_refused_by_field() {
    for (body, message) in [
        (
            r#"{"device":"a","metric":"b","value":1,"counter":5}"#,
            "record 0: counter: the number 5 is not true, false or an object",
        ),
        (
            r#"{"device":"a","metric":"b","value":1,"counter":{"wraps_at":0}}"#,
            "record 0: counter.wraps_at: 0; expected a finite number above 0",
        ),
        (
            r#"{"device":"a","metric":"b","value":1,"counter":{"max_per_hour":-1}}"#,
            "record 0: counter.max_per_hour: -1; expected a finite number above 0",
        ),
        (
            r#"{"device":"a","metric":"b","value":1,"counter":{"wraps_at":"x"}}"#,
            r#"record 0: counter.wraps_at: the string "x" is not a number"#,
        ),
        (
            r#"{"device":"a","metric":"b","value":1,"counter":{"start":true}}"#,
            "record 0: counter.start: true is not an RFC 3339 date and time, or Unix seconds",
        ),
        (
            r#"{"device":"a","metric":"b","value":1,"counter":{"wrap":1}}"#,
            "record 0: counter.wrap: unknown field; a counter has only wraps_at, max_per_hour, start",
        ),
        (
            r#"{"device":"a","metric":"b","value":1,"counter":true,"counter":{}}"#,
            "record 0: counter: given twice",
        ),
    ] {
        assert_eq!(error("application/json", body), message, "{body}");
    }
}
