//! A field that cannot be read costs only its data points.

use super::*;

/// The metrics of the readings, and the reasons of the rejected points.
fn sorted(encoding: OtlpEncoding, body: &[u8]) -> (Vec<String>, Vec<(&'static str, u64)>) {
    let (records, rejected) = encoding.records(body, now(), &Limits::default()).unwrap();
    let metrics = records.iter().map(|record| record.reading.metric.to_string()).collect();
    (metrics, rejected.counts.into_iter().collect())
}

#[test]
fn a_field_of_another_type_costs_only_its_data_point_and_null_is_its_default() {
    let point = |more: &str| format!(r#"{{"timeUnixNano":"{TIME}","asDouble":1{more}}}"#);
    let metric = |name: &str, more: &str, point: &str| {
        format!(r#"{{"name":{name}{more},"gauge":{{"dataPoints":[{point}]}}}}"#)
    };
    let attribute =
        |key: &str, value: &str| point(&format!(r#","attributes":[{{"key":{key},"value":{value}}}]"#));
    let sum = |temporality: &str| {
        format!(
            r#"{{"name":"s","sum":{{"aggregationTemporality":{temporality},"isMonotonic":true,"dataPoints":[{}]}}}}"#,
            point("")
        )
    };
    let zero = r#"{"timeUnixNano":null,"asDouble":1}"#;
    for (other, expected) in [
        (metric("\"b\"", r#","unit":null"#, &point("")), Ok("b")),
        (metric("\"b\"", "", &point(r#","attributes":null,"flags":null,"startTimeUnixNano":null"#)), Ok("b")),
        (metric("\"b\"", r#","unit":5"#, &point("")), Ok("b")),
        (metric("\"b\"", "", &point(r#","flags":"0""#)), Ok("b")),
        (sum("\"AGGREGATION_TEMPORALITY_CUMULATIVE\""), Ok("s")),
        (sum("\"AGGREGATION_TEMPORALITY_DELTA\""), Ok("s,temporality=delta")),
        (sum("\"often\""), Err("missing-field")),
        (sum("null"), Err("missing-field")),
        (metric("null", "", &point("")), Err("missing-field")),
        (metric("[1]", "", &point("")), Err("missing-field")),
        (metric("\"b\"", "", &point(r#","flags":"x""#)), Err("wrong-type")),
        (metric("\"b\"", "", &attribute("5", r#"{"stringValue":"x"}"#)), Err("bad-name")),
        (metric("\"b\"", "", &attribute("\"k\"", r#"{"intValue":"x"}"#)), Err("wrong-type")),
        (metric("\"b\"", "", &attribute("\"k\"", r#"{"stringValue":{}}"#)), Err("wrong-type")),
        (metric("\"b\"", "", zero), Err("missing-field")),
    ] {
        let device = r#"{"attributes":[{"key":"device.id","value":{"stringValue":"d"}}]}"#;
        let body = format!(
            r#"{{"resourceMetrics":[{{"resource":{device},"scopeMetrics":[{{"metrics":[{},{other}]}}]}}]}}"#,
            metric("\"a\"", "", &point(""))
        );
        let (metrics, rejected) = sorted(OtlpEncoding::Json, body.as_bytes());
        assert_eq!(metrics[0], "a", "{other}");
        let seen = metrics.get(1).map(String::as_str).ok_or_else(|| rejected[0].0);
        assert_eq!((seen, metrics.len() + rejected.len()), (expected, 2), "{other}");
    }
}

#[test]
fn a_text_that_is_not_utf_8_costs_only_its_data_points() {
    let device = text("device.id", "d");
    let label = |value: &str| vec![point(1.0, vec![text("k", value)])];
    let metrics = vec![
        gauge("a", "Cel", vec![point(1.0, vec![])]),
        gauge("b~~", "", vec![point(1.0, vec![]), point(2.0, vec![text("k", "v")])]),
        gauge("c", "~~", vec![point(1.0, vec![])]),
        gauge("d", "", label("~~")),
        gauge("e", "", label("fine")),
        gauge("f", "", vec![point(1.0, vec![text("~~", "v")])]),
        gauge("g", "", vec![point(1.0, vec![text("device.id", "~~")])]),
    ];
    let mut body = request(vec![text("other", "~~"), device], metrics).encode_to_vec();
    body.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
    let (metrics, rejected) = sorted(OtlpEncoding::Protobuf, &body);
    assert_eq!((metrics, rejected), (vec!["a".to_owned(), "e,k=fine".to_owned()], vec![("bad-name", 6)]));
}
