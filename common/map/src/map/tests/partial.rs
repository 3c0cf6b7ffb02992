//! A value that is refused does not take the others with it.

use super::*;

/// The readings, and what is refused.
fn sorted(rules: &str, payload: &[u8], limits: &Limits) -> (Vec<String>, Vec<String>) {
    let mapped = map(rules).apply(Source::Topic("t"), payload, now(), limits).unwrap();
    let positions = mapped.clone().sifted().slots;
    assert_eq!(positions.len(), mapped.records.len() + mapped.refused.len());
    assert!(mapped.refused.iter().all(|refused| positions[refused.index].is_none()));
    let readings = mapped.records.iter();
    let readings = readings.map(|record| format!("{} {}", record.reading.metric, record.reading.value));
    let refused = mapped.refused.iter().map(|refused| format!("{refused} ({})", refused.code.code()));
    (readings.collect(), refused.collect())
}

fn rest(rules: &str, payload: &[u8]) -> String {
    let rest = map(rules).remainder(Source::Topic("t"), payload, now(), &Limits::default());
    String::from_utf8_lossy(&rest).into_owned()
}

const VALUES: &str = "[[map]]\ndevice = \"d\"\nmetric = \"{name}\"\nvalues = \"\"\nignore = [\"x\"]\n";

#[test]
fn each_value_of_a_payload_is_refused_by_itself() {
    let none = Limits::default();
    for word in ["nan", "NaN", "-Infinity", "1e999", ".5", "5.", "05", "-"] {
        let payload = format!("{{\"a\":1,\"b\":{word},\"c\":3,\"x\":{word}}}");
        assert_eq!(
            sorted(VALUES, payload.as_bytes(), &none),
            (vec!["a 1".into(), "c 3".into()], vec!["record 1: b: not a finite number (not-finite)".into()])
        );
        assert_eq!(
            rest(VALUES, payload.as_bytes()),
            format!("{{\"a\":null,\"b\":{word},\"c\":null,\"x\":{word}}}")
        );
    }
    let latin = b"{\"a\":1,\"T\xb0\":2,\"c\":3,\"note\":\"\xb0\"}\0";
    let (readings, refused) = sorted(VALUES, latin, &none);
    assert_eq!(readings, ["a 1", "c 3"]);
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].starts_with("record 1: T?: metric: \"T\\u{7f}\": contains a control character or a byte"),
        "{refused:?}"
    );
    let doubled = sorted(VALUES, b"{\"a\":1,\"b\":nan,\"a\":2,\"c\":3,\"a\":1}", &none);
    assert_eq!(doubled.0, ["a 1", "c 3", "a 1"], "a repetition is no other value");
    assert_eq!(
        doubled.1,
        [
            "record 1: b: not a finite number (not-finite)",
            "record 2: a: two readings of device \"d\" and metric \"a\" have the same time and different values (duplicate)",
        ]
    );
}

#[test]
fn an_element_of_each_is_refused_by_itself_and_its_values_remain() {
    let rules =
        "[[map]]\neach = \"\"\ndevice = \"{./d}\"\nmetric = \"m\"\nvalue = \"{./v}\"\ntime = \"{./t}\"\n";
    let limits = Limits::of_times(std::time::Duration::from_secs(60), Timestamp::DEFAULT_MIN);
    let payload = br#"[{"d":"a","v":1,"t":1790000000},{"v":2,"t":1790000000},{"d":"c","v":3,"t":4070908800},
        {"d":"e","v":"x","t":1790000000},{"d":"f","v":5,"t":0},{"d":"g","v":6,"t":1790000000}]"#;
    let (readings, refused) = sorted(rules, payload, &limits);
    assert_eq!(readings, ["m 1", "m 6"]);
    let starts = [
        "record 1: 1: device: ./d is missing (missing-field)",
        "record 2: 2: time: 2099-01-01T00:00:00Z is more than 1m ahead",
        "record 3: m: \"x\" is not a number (not-numeric)",
        "record 4: 4: time: 1970-01-01T00:00:00Z is before min_time (1990-01-01T00:00:00Z); is the sender's clock set?",
    ];
    assert_eq!(refused.len(), starts.len(), "{refused:?}");
    for (refused, start) in refused.iter().zip(starts) {
        assert!(refused.starts_with(start), "{refused}");
    }
    let rest = map(rules).remainder(Source::Topic("t"), payload, now(), &limits);
    let again = map(rules).apply(Source::Topic("t"), &rest, now(), &Limits::default()).unwrap();
    let values: Vec<f64> = again.records.iter().map(|record| record.reading.value).collect();
    assert_eq!(values, [3.0, 5.0], "what was accepted is not mapped again, and what was refused is");
}

#[test]
fn a_payload_without_a_reading_is_refused_with_the_first_reason() {
    assert_eq!(reason(VALUES, "t", r#"{"a":nan,"b":inf}"#), "rule 1: value of a: not a finite number");
    assert_eq!(rest(VALUES, b"{\"a\":nan}"), "{\"a\":nan}");
    assert_eq!(
        reason(VALUES, "t", r#"{"a":1,"b":}"#),
        "rule 1: not JSON: expected value at line 1 column 12"
    );
}
