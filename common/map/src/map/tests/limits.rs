use super::*;
use crate::limits::{MAX_DEPTH, MAX_ENTRIES, MAX_VALUES};

#[test]
fn every_limit_is_enforced() {
    let rule = "[[map]]\ntopic = \"a\"\ndevice = \"d\"\nmetric = \"m\"\n";
    assert!(Map::parse("", &rule.repeat(MAX_RULES)).is_ok());
    assert_eq!(invalid(&rule.repeat(MAX_RULES + 1)), "map rules.toml: 257 rules; expected 1 to 256");
    let large = format!("{rule}#{}", "x".repeat(MAX_FILE_BYTES));
    assert!(invalid(&large).ends_with("bytes long; 262144 are allowed"));
    for field in ["has", "none"] {
        let list = |length: usize| format!("{rule}{field} = [{}]", "\"/a\",".repeat(length));
        assert!(Map::parse("", &list(MAX_ENTRIES)).is_ok(), "{field}");
        assert_eq!(
            invalid(&list(MAX_ENTRIES + 1)),
            format!("map rules.toml: rule 1: {field}: 1001 entries; at most 1000")
        );
    }
    let table = |field: &str, value: &str, length: usize| {
        let entries: String = (0..length).map(|number| format!("\"/k{number}\" = {value}\n")).collect();
        format!("[[map]]\ndevice = \"d\"\nvalues = \"\"\n[map.{field}]\n{entries}")
    };
    for (field, value) in [("enum", "1"), ("units", "\"V\""), ("equals", "1"), ("fields", "{}")] {
        assert!(Map::parse("", &table(field, value, MAX_ENTRIES)).is_ok(), "{field}");
        let error = invalid(&table(field, value, MAX_ENTRIES + 1));
        assert_eq!(error, format!("map rules.toml: rule 1: {field}: 1001 entries; at most 1000"));
    }
    let list = |length: usize| {
        let entries: String = (0..length).map(|number| format!("\"k{number}\",")).collect();
        format!("[[map]]\ndevice = \"d\"\nvalues = \"\"\nignore = [{entries}]")
    };
    assert!(Map::parse("", &list(MAX_ENTRIES)).is_ok());
    assert!(invalid(&list(MAX_ENTRIES + 1)).ends_with("ignore: 1001 entries; at most 1000"));
    let reading = |length: usize| {
        format!("[[map]]\ndevice = \"d\"\n{}", "[[map.reading]]\nmetric = \"m\"\n".repeat(length))
    };
    assert!(Map::parse("", &reading(MAX_ENTRIES)).is_ok());
    assert!(invalid(&reading(MAX_ENTRIES + 1)).ends_with("reading: 1001 entries; at most 1000"));

    let rules = "[[map]]\ndevice = \"d\"\nvalues = \"\"\n";
    let long = "x".repeat(MAX_SOURCE_BYTES + 1);
    assert!(apply(rules, &long[1..], "[1]").is_ok());
    assert_eq!(reason(rules, &long, "[1]"), "the source is 1025 bytes long; 1024 are allowed");
    let padded = |length: usize| format!("[1{}]", " ".repeat(length - 3));
    assert!(apply(rules, "t", &padded(MAX_PAYLOAD_BYTES)).is_ok());
    assert_eq!(
        reason(rules, "t", &padded(MAX_PAYLOAD_BYTES + 1)),
        "the payload is 1048577 bytes long; 1048576 are allowed"
    );
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert!(apply(rules, "t", &deep(MAX_DEPTH)).is_ok());
    assert_eq!(reason(rules, "t", &deep(MAX_DEPTH + 1)), "rule 1: the payload has more than 32 levels");
    let wide = |values: usize| format!("[{}1]", "1,".repeat(values - 2));
    assert_eq!(apply(rules, "t", &wide(MAX_VALUES)).unwrap().records.len(), MAX_VALUES - 1);
    assert_eq!(reason(rules, "t", &wide(MAX_VALUES + 1)), "rule 1: the payload has more than 10000 values");
    let few = Limits { records: 2, ..Limits::default() };
    let map = map(rules);
    assert!(map.apply(Source::Topic("t"), b"[1,2]", now(), &few).is_ok());
    let error = map.apply(Source::Topic("t"), b"[1,2,3]", now(), &few).unwrap_err();
    assert_eq!(error.reason, Reason::TooManyReadings(2));
    let long = format!("{{\"{}\":1}}", "n".repeat(129));
    assert!(reason(rules, "t", &long).ends_with("is 129 bytes long; 128 are allowed"));
}
