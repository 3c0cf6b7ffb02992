//! Values that nobody measured.

use super::*;

#[test]
fn numbers_and_texts_of_none_are_no_values() {
    let rules = r#"
        [[map]]
        topic = "+"
        device = "d"
        values = ""
        none = [65535, "n/a", "-999", 327.67]
        enum = { off = 65535 }
        allow_empty = true
        [map.fields]
        t = { unit = "Cel", scale = 0.1, none = [850, "--"] }
    "#;
    for (payload, expected) in [
        (r#"{"pm25": 65535}"#, None),
        (r#"{"pm25": 65535.0}"#, None),
        (r#"{"pm25": 65534}"#, Some(65534.0)),
        (r#"{"pm25": -999}"#, None),
        (r#"{"pm25": 327.67001342773438}"#, None),
        (r#"{"pm25": 850}"#, Some(850.0)),
        (r#"{"pm25": "n/a"}"#, None),
        // Below `values` a text is no number.
        (r#"{"pm25": "65535"}"#, None),
        // The number of a word, and a flag, are never codes.
        (r#"{"pm25": "off"}"#, Some(65535.0)),
        (r#"{"pm25": true}"#, Some(1.0)),
        (r#"{"t": 850}"#, None),
        (r#"{"t": "850"}"#, None),
        (r#"{"t": "850.0"}"#, None),
        (r#"{"t": "--"}"#, None),
        (r#"{"t": "65535"}"#, None),
        (r#"{"t": "-999"}"#, None),
        (r#"{"t": 851}"#, Some(85.1)),
        (r#"{"t": "851"}"#, Some(85.1)),
    ] {
        let records = apply(rules, "x", payload).unwrap().records;
        let value = records.first().map(|record| record.reading.value);
        let differs = match (value, expected) {
            (Some(value), Some(expected)) => (value - expected).abs() > 1e-9,
            (value, expected) => value != expected,
        };
        assert!(!differs, "{payload}: {value:?}, not {expected:?}");
    }
    let explicit = "[[map]]\ndevice = \"d\"\n[[map.reading]]\nmetric = \"m\"\nnone = [-127]\n";
    assert_eq!(reason(explicit, "x", "-127"), "rule 1: no value is a number");
    assert_eq!(reason(explicit, "x", "-127.0"), "rule 1: no value is a number");
    let with = |none: &str| format!("[[map]]\ndevice = \"d\"\nmetric = \"m\"\nnone = {none}\n");
    let error = "map rules.toml: rule 1: none: inf is not a finite number";
    assert_eq!(invalid(&with("[inf]")), error);
    let error = "map rules.toml: rule 1: none: expected a text or a number";
    assert_eq!(invalid(&with("[true]")), error);
}

#[test]
fn values_are_left_out_if_what_shows_that_they_were_measured_is_absent() {
    let rules = r#"
        [[map]]
        topic = "+"
        each = "/all"
        device = "{./id}"
        values = "./v"
        values_if = ["./raw", "/ok"]
        has_any = ["/ok", "/fine"]
        allow_empty = true
    "#;
    let payload = r#"{"ok": false, "all": [
        {"id": "a", "raw": "00", "v": {"t": 1}}, {"id": "b", "raw": "", "v": {"t": 2}}, {"id": "c", "v": {"t": 3}},
        {"id": "d", "raw": 0, "v": {"t": 4}}, {"id": "e", "raw": [], "v": {"t": 5}}, {"id": "f", "raw": null}]}"#;
    let mut skipped = Vec::new();
    let mut note = |what: &str, why: &str| skipped.push(format!("{what}: {why}"));
    let source = Source::Topic("x");
    let mapped =
        map(rules).explain(source, payload.as_bytes(), now(), &Limits::default(), &mut note).unwrap();
    assert_eq!(shown(&mapped.records), ["a t 1 - 2026-11-24T12:00:00Z?", "d t 4 - 2026-11-24T12:00:00Z?"]);
    assert_eq!(mapped.unmeasured, 4);
    assert_eq!(skipped, ["./v: nothing was measured: ./raw is missing or empty"; 4]);
    assert_eq!(apply(rules, "x", r#"{"fine": 1, "all": [{"id": "a", "raw": 1}]}"#).unwrap().unmeasured, 1);
    assert_eq!(reason(rules, "x", r#"{"all": []}"#), "no rule matches");
    let without = "[[map]]\ndevice = \"d\"\nmetric = \"m\"\nvalues_if = [\"/a\"]";
    assert_eq!(invalid(without), "map rules.toml: rule 1: values_if: has no effect without `values`");
}
